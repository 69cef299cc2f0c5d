//! Allow rules of namespaces as expressions in CEL, the Common Expression Language.
//!
//! The cost of an expression is bounded when it is set: it has no loops, no regular expressions and few nodes, and its
//! inputs are limited (the channel's name, the user, 16 KiB of `meta`). So evaluation does not need to count steps.

use std::fmt::Display;
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, operators};
use cel::{Context, Env, Program, Value};
use dunlin_config::ChannelOptions;

use super::meta::{Meta, MetaResolver};

/// The longest expression, in bytes.
const BYTES_MAX: usize = 1_024;
/// The most nodes of its syntax tree.
const NODES_MAX: usize = 128;
/// The greatest depth of the tree.
const DEPTH_MAX: u16 = 24;
/// The most concatenations of strings and lists: each copies its operands.
const ADDITIONS_MAX: usize = 8;
/// The variables of an expression.
const VARIABLES: [&str; 4] = ["user", "channel", "meta", "subscribed"];
/// The permitted functions. Each takes at most linear time in its arguments.
const FUNCTIONS: [&str; 8] =
    ["size", "contains", "startsWith", "endsWith", "string", "int", "double", "bool"];
/// The permitted operators.
const OPERATORS: [&str; 18] = [
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::CONDITIONAL,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::INDEX,
    operators::NEGATE,
    operators::ADD,
    operators::SUBSTRACT,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
];

/// The advice for a rejected expression.
pub const FIX: &str =
    "write it as in \"channel == 'room:' + user || 'admin' in meta.roles\", in at most 1024 bytes";

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// An expression of a setting. One that does not compile permits nothing.
#[derive(Debug)]
pub struct Expression {
    program: Option<Program>,
    text: Box<str>,
    looks_at_meta: bool,
    /// Whether it uses the channel's name, so that its result may differ between channels.
    pub looks_at_channel: bool,
}

/// The values that an expression is evaluated with.
#[derive(Clone, Copy, Debug)]
pub struct ExpressionInput<'a> {
    /// The user; empty for clients without one.
    pub user: &'a str,
    /// The channel.
    pub channel: &'a str,
    /// Whether the client is subscribed to the channel.
    pub subscribed: bool,
    /// The connection's `meta`.
    pub meta: Option<&'a Meta>,
}

/// The expressions of a namespace.
#[derive(Debug, Default, PartialEq)]
pub struct Expressions {
    /// `subscribe_cel`.
    pub subscribe: Option<Expression>,
    /// `publish_cel`.
    pub publish: Option<Expression>,
    /// `history_cel`.
    pub history: Option<Expression>,
    /// `presence_cel`.
    pub presence: Option<Expression>,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text == other.text
    }
}

impl Expressions {
    /// Compiles the expressions of a namespace; `None` if it has none.
    pub fn of(namespace: &str, rules: &ChannelOptions) -> Option<Arc<Expressions>> {
        let [subscribe, publish, history, presence] = texts(rules).map(|(key, text)| {
            let key = format_args!("{key} of namespace {namespace:?}");
            text.map(|text| Expression::of_setting(key, text))
        });
        let all = Expressions { subscribe, publish, history, presence };
        (all != Expressions::default()).then(|| Arc::new(all))
    }

    /// Whether one of them uses the connection's `meta`.
    pub fn look_at_meta(&self) -> bool {
        let all = [&self.subscribe, &self.publish, &self.history, &self.presence];
        all.into_iter().flatten().any(|of| of.looks_at_meta)
    }
}

/// Validates an expression.
///
/// # Errors
/// It does not compile, may take too long, or uses an unknown variable.
pub fn judge(text: &str) -> Result<(), String> {
    Expression::compile(text).map(drop)
}

/// Returns the expressions of a namespace with their keys.
pub fn texts(rules: &ChannelOptions) -> [(&'static str, Option<&str>); 4] {
    [
        ("subscribe_cel", rules.subscribe_cel.as_deref()),
        ("publish_cel", rules.publish_cel.as_deref()),
        ("history_cel", rules.history_cel.as_deref()),
        ("presence_cel", rules.presence_cel.as_deref()),
    ]
}

impl Expression {
    /// Compiles the expression of a setting. [`judge`] has refused one that does not compile; should one get here all the
    /// same, the log says that it permits nothing.
    pub(crate) fn of_setting(key: impl Display, text: &str) -> Expression {
        Expression::compile(text).unwrap_or_else(|error| {
            tracing::error!(%key, error, "closed: this expression does not compile, so it permits nothing");
            let (looks_at_meta, looks_at_channel) = (false, false);
            Expression { program: None, text: text.into(), looks_at_meta, looks_at_channel }
        })
    }

    fn compile(text: &str) -> Result<Expression, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        // The parser recurses as deep as the brackets nest, before the nodes are counted.
        let depth = text.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'{')).count();
        if depth > NODES_MAX {
            return Err(format!("it has more than {NODES_MAX} brackets"));
        }
        let program = ENV.compile(text).map_err(|errors| {
            let first = errors.errors.first().map(|error| error.msg.clone());
            first.unwrap_or_else(|| "it is no expression".to_owned())
        })?;
        let mut cost = Cost::default();
        cost.add(program.expression(), 0)?;
        let references = program.references();
        if let Some(unknown) =
            references.variables().into_iter().find(|name| !VARIABLES.contains(name))
        {
            return Err(format!("there is no `{unknown}`; there are {}", VARIABLES.join(", ")));
        }
        let looks_at_meta = references.has_variable("meta");
        let looks_at_channel = references.has_variable("channel");
        let program = Some(program);
        Ok(Expression { program, text: text.into(), looks_at_meta, looks_at_channel })
    }

    /// Whether the expression yields `true`. An error, for a missing field for instance, counts as `false`.
    pub fn admits(&self, asked: &ExpressionInput<'_>) -> bool {
        let Some(program) = &self.program else { return false };
        // Without a valid `meta` the variable is undefined, so an expression that evaluates it fails, even `!has(meta.x)`.
        let meta = asked.meta.filter(|_| self.looks_at_meta).and_then(Meta::value);
        let resolver = meta.as_ref().map(|meta| MetaResolver(meta.as_val()));
        let mut context = Context::with_env(Arc::clone(&ENV));
        if let Some(resolver) = &resolver {
            context.set_variable_resolver(resolver);
        }
        context.add_variable_from_value("user", asked.user);
        context.add_variable_from_value("channel", asked.channel);
        context.add_variable_from_value("subscribed", Value::Bool(asked.subscribed));
        matches!(program.execute(&context), Ok(Value::Bool(true)))
    }
}

/// The cost of the nodes that were visited so far.
#[derive(Default)]
struct Cost {
    nodes: usize,
    additions: usize,
}

impl Cost {
    fn add(&mut self, node: &IdedExpr, depth: u16) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || depth > DEPTH_MAX {
            return Err(format!(
                "it has more than {NODES_MAX} parts, or they nest deeper than {DEPTH_MAX}"
            ));
        }
        match &node.expr {
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Ok(()),
            Expr::Select(select) => self.add(&select.operand, depth + 1),
            Expr::List(list) => {
                list.elements.iter().try_for_each(|element| self.add(element, depth + 1))
            }
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.add(&entry.key, depth + 1)?;
                    self.add(&entry.value, depth + 1)
                }
                EntryExpr::StructField(field) => self.add(&field.value, depth + 1),
            }),
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                if !OPERATORS.contains(&name) && !FUNCTIONS.contains(&name) {
                    return Err(format!("there is no function `{name}`"));
                }
                self.additions += usize::from(name == operators::ADD);
                if self.additions > ADDITIONS_MAX {
                    return Err(format!("it adds more than {ADDITIONS_MAX} times"));
                }
                if let Some(target) = &call.target {
                    self.add(target, depth + 1)?;
                }
                call.args.iter().try_for_each(|argument| self.add(argument, depth + 1))
            }
            Expr::Comprehension(_) => {
                Err("it loops (all, exists, exists_one, map, filter); use `in`".to_owned())
            }
            Expr::Struct(_) => Err("it makes a message".to_owned()),
        }
    }
}

/// Fuzz target: an expression, and a `meta` after the first line. The expression is rejected, or yields the same result
/// twice.
#[cfg(any(test, feature = "fuzz"))]
pub fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (text, meta) = text.split_once('\n').unwrap_or((&text, "{}"));
    let Ok(expression) = Expression::compile(text) else { return };
    for (user, subscribed) in [("", false), ("ada", true)] {
        let meta = Meta::from(Box::from(meta.as_bytes()));
        let asked = ExpressionInput { user, channel: "room:ada", subscribed, meta: Some(&meta) };
        assert_eq!(expression.admits(&asked), expression.admits(&asked), "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::meta::META_BYTES_MAX;
    use super::*;

    fn says(text: &str, user: &str, channel: &str, meta: &str) -> bool {
        let meta = Meta::from(Box::from(meta.as_bytes()));
        let asked = ExpressionInput { user, channel, subscribed: false, meta: Some(&meta) };
        Expression::compile(text).unwrap_or_else(|why| panic!("{text}: {why}")).admits(&asked)
    }

    #[test]
    fn an_expression_decides_by_user_channel_and_meta() {
        let own = "channel == 'room:' + user || 'admin' in meta.roles";
        assert!(says(own, "ada", "room:ada", "{}"));
        assert!(!says(own, "bob", "room:ada", "{}"), "there are no roles");
        assert!(says(own, "bob", "room:ada", r#"{"roles":["user","admin"]}"#));
        assert!(!says(own, "bob", "room:ada", r#"{"roles":"admin"}"#), "it is no list");
        assert!(says(
            "has(meta.tenant) && channel.startsWith(meta.tenant)",
            "",
            "t1:a",
            r#"{"tenant":"t1"}"#
        ));
        assert!(says("meta.level >= 3 && user != ''", "ada", "a", r#"{"level":3}"#));
        assert!(says("user in ['ada', 'bob']", "bob", "a", ""));
        for no in ["user", "1", "meta", "meta.x", "1 / 0 == 1", "subscribed", "'a' > 1"] {
            assert!(!says(no, "ada", "a", r#"{"x":1}"#), "{no}: only `true` is yes");
        }
        for malformed in ["[1", "7", "null", "", "\u{0}"] {
            assert!(!says("meta.x == 1", "ada", "a", malformed));
            assert!(says("user == 'ada' || meta.x == 1", "ada", "a", malformed));
        }
        assert!(!says("!has(meta.x)", "ada", "a", ""), "what is not known is no leave");
        let long = format!("{{\"x\":1,\"pad\":\"{}\"}}", "a".repeat(META_BYTES_MAX));
        assert!(!says("meta.x == 1", "ada", "a", &long));
    }

    #[test]
    fn one_that_is_made_to_be_slow_is_refused_when_it_is_set() {
        let sum = |of: &str, times: usize| vec![of; times].join(" + ");
        for slow in [
            "meta.a.all(x, meta.a.all(y, x in meta.a))",
            "[1, 2].map(x, x).size() > 0",
            "meta.a.exists(x, x == 1)",
            "meta.s.matches('(a+)+$')",
            &format!("size({}) > 0", sum("meta.s", 100)),
            &format!("{} > 0", sum("1", 400)),
            &"(".repeat(500),
            &format!("{}true{}", "(".repeat(400), ")".repeat(400)),
            &format!("{}1{}", "[".repeat(300), "]".repeat(300)),
            &vec!["user == 'a'"; 60].join(" || "),
            &"!".repeat(1_000),
            &format!("a{}", ".a".repeat(500)),
            &format!("user{}", "[0]".repeat(100)),
            &format!("{}true", "true ? true : ".repeat(70)),
            &format!("user in {}", vec!["[user]"; 100].join(" in ")),
            &"a".repeat(2_000),
        ] {
            assert!(Expression::compile(slow).is_err(), "{slow}");
        }
        // The most expensive expression that is accepted.
        let texts = ["'x' in [meta, meta, meta, meta, meta]"; 12].join(" || ");
        let dear = Expression::compile(&texts).unwrap();
        let meta = format!("[{}7]", "7,".repeat(META_BYTES_MAX / 2 - 2));
        let asked = ExpressionInput {
            user: "",
            channel: "",
            subscribed: false,
            meta: Some(&Meta::from(Box::from(meta.as_bytes()))),
        };
        assert!(!dear.admits(&asked));
    }

    #[test]
    fn malformed_expression_is_refused_with_a_reason() {
        for (text, why) in [
            ("", ""),
            ("user ==", ""),
            ("usr == 'a'", "there is no `usr`"),
            ("user.lower() == 'a'", "there is no function `lower`"),
            ("vars.user == user", "there is no `vars`"),
            ("a.b{c: 1} == 2", ""),
        ] {
            let refused = Expression::compile(text).expect_err(text);
            assert!(refused.contains(why) && !refused.is_empty(), "{text}: {refused}");
        }
    }
}
