//! Imports point down: between crates as ARCHITECTURE.md draws them, between the folders of a crate without a cycle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::repository::{Repository, report};

/// The line of the diagram below which a crate imports no other crate of this workspace.
const GROUND: &str = "on the ground, importing nothing of ours:";

/// The crates of the diagram from top to bottom, and how many of them stand above the ground.
fn diagram(architecture: &str) -> (Vec<&str>, usize) {
    let block = architecture.split("```").nth(1).expect("ARCHITECTURE.md begins with a diagram");
    let mut crates = Vec::new();
    let mut above = usize::MAX;
    for line in block.lines() {
        let line = line.trim_start_matches([' ', '├', '└', '│', '─']);
        if line == GROUND {
            above = crates.len();
        } else {
            crates.extend(line.split_whitespace().next());
        }
    }
    (crates, above)
}

#[test]
fn crates_import_downwards_as_the_diagram_draws_them() {
    let repository = Repository::read();
    let (drawn, above) = diagram(repository.text("ARCHITECTURE.md"));
    let mut complaints = Vec::new();
    let mut sorted = drawn.clone();
    sorted.sort_unstable();
    if sorted != repository.crates() {
        complaints.push(format!(
            "ARCHITECTURE.md draws {sorted:?}, and there are {:?}",
            repository.crates()
        ));
    }
    for (place, name) in drawn.iter().enumerate() {
        let manifest = repository.manifest(name);
        let manifest: toml::Table = manifest.parse().expect("a manifest");
        let tables = ["dependencies", "build-dependencies"];
        let imports = tables.iter().filter_map(|table| manifest.get(*table)?.as_table());
        for import in imports.flat_map(toml::Table::keys) {
            let Some(import) = import.strip_prefix("dunlin-") else { continue };
            if place >= above {
                complaints.push(format!("{name} is on the ground and imports {import}"));
            } else if drawn.iter().position(|other| *other == import).is_none_or(|at| at <= place) {
                complaints.push(format!("{name} imports {import}, which is not below it"));
            }
        }
    }
    report(&complaints);
}

#[test]
fn every_dependency_is_used() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    let workspace: toml::Table = repository.text("Cargo.toml").parse().expect("a manifest");
    let offered = workspace["workspace"]["dependencies"].as_table().expect("a table");
    let mut unused: BTreeSet<&str> = offered.keys().map(String::as_str).collect();
    for name in repository.crates() {
        let folder = repository.folder(name);
        let manifest = repository.manifest(name);
        for (key, _) in manifest.lines().filter_map(|line| line.split_once(" = {")) {
            unused.remove(key.strip_suffix(".workspace").unwrap_or(key));
        }
        let manifest: toml::Table = manifest.parse().expect("a manifest");
        for (table, folders) in [
            ("dependencies", &["src/"][..]),
            ("dev-dependencies", &["src/", "tests/", "benches/", "examples/"]),
        ] {
            let files = repository.ending(".rs").filter(|(file, _)| {
                folders.iter().any(|below| file.starts_with(&format!("{folder}/{below}")))
            });
            let words: BTreeSet<&str> = files.flat_map(|(_, text)| tokens(text)).collect();
            let dependencies = manifest.get(table).and_then(toml::Value::as_table);
            for dependency in dependencies.into_iter().flat_map(toml::Table::keys) {
                if !words.contains(&*library(dependency)) {
                    complaints
                        .push(format!("{folder}/Cargo.toml: {table}: {dependency} is not used"));
                }
            }
        }
    }
    complaints.extend(unused.iter().map(|name| format!("Cargo.toml: no crate uses {name}")));
    report(&complaints);
}

/// The name by which code calls a package: its library's, where that is another one.
fn library(package: &str) -> String {
    match package {
        "md-5" => "md5".to_owned(),
        _ => package.replace('-', "_"),
    }
}

/// Folders and not modules: two folders whose modules import each other are one room, even if no two modules do.
#[test]
fn folders_import_each_other_without_a_cycle() {
    let repository = Repository::read();
    let mut complaints = Vec::new();
    for name in repository.crates() {
        for cycle in Modules::read(&repository, name).cycles() {
            complaints.push(format!("{name}: {cycle}"));
        }
    }
    report(&complaints);
}

/// Protocols plug in above the core of the loop, which does without them.
#[test]
fn the_core_of_the_loop_imports_no_protocol() {
    let repository = Repository::read();
    let modules = Modules::read(&repository, "net");
    let mut complaints = Vec::new();
    for (from, targets) in modules.edges() {
        let below = from.first().is_some_and(|folder| folder == "core");
        let above =
            |to: &&Steps| to.first().is_some_and(|to| !["core", "timeout"].contains(&to.as_str()));
        for to in targets.iter().filter(|_| below).filter(above) {
            complaints.push(format!("net::{} imports net::{}", from.join("::"), to.join("::")));
        }
    }
    assert!(modules.0.contains_key(&["core".to_owned(), "driver".to_owned()][..]));
    report(&complaints);
}

/// The steps of a path: `["server", "worker", "Worker"]`.
type Steps = Vec<String>;

/// What a module, without its tests, says about other modules.
#[derive(Debug, Default)]
struct Module {
    /// Names it brings in with `use`, and where they are from.
    uses: BTreeMap<String, Steps>,
    /// Names it brings in from other crates: who reaches through for them imports those crates.
    of_others: BTreeSet<String>,
    /// Of these, the names that it re-exports: others reach through, so that is no import of its own.
    exports: BTreeSet<String>,
    /// Modules of which it brings in everything, and paths it spells out.
    paths: Vec<Steps>,
}

/// The modules of a crate by their paths.
#[derive(Debug, Default)]
struct Modules(BTreeMap<Steps, Module>);

impl Modules {
    fn read(repository: &Repository, name: &str) -> Modules {
        let src = format!("{}/src/", repository.folder(name));
        let text = |file: &str| {
            let text = repository.text(&format!("{src}{file}"));
            (!text.is_empty()).then(|| text.to_owned())
        };
        Modules::of(&text)
    }

    /// The modules of a crate by the texts of its files; `None`: there is no such file.
    fn of(text: &impl Fn(&str) -> Option<String>) -> Modules {
        let mut modules = Modules::default();
        let root = ["lib.rs", "main.rs"].into_iter().find(|root| text(root).is_some());
        modules.add(&Steps::new(), root.expect("a crate has a root"), text);
        modules
    }

    /// Adds the module of a file, and those that it declares.
    fn add(&mut self, path: &Steps, file: &str, text: &impl Fn(&str) -> Option<String>) {
        let text_of_file = text(file).unwrap_or_default();
        let tokens = without_tests(&tokens(&text_of_file));
        let children: Vec<String> = tokens
            .windows(3)
            .filter(|window| window[0] == "mod" && window[2] == ";")
            .map(|window| window[1].to_owned())
            .collect();
        let mut module = Module::default();
        module.scan(path, &tokens, &children);
        self.0.insert(path.clone(), module);
        for child in children {
            let below: Steps = path.iter().cloned().chain([child]).collect();
            let stem = below.join("/");
            let file = [format!("{stem}.rs"), format!("{stem}/mod.rs")]
                .into_iter()
                .find(|file| text(file).is_some());
            self.add(&below, &file.unwrap_or_else(|| panic!("{stem} has no file")), text);
        }
    }

    /// The module that defines what a path names; re-exports are followed. `None`: another crate does.
    fn definition(&self, path: &[String], hops: usize) -> Option<Steps> {
        let depth = (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth]));
        let (module, rest) = path.split_at(depth.unwrap_or_default());
        let from = rest.first().and_then(|name| self.0[module].uses.get(name));
        match from {
            Some(from) if hops < 10 && from != path => {
                let next: Steps = from.iter().chain(&rest[1..]).cloned().collect();
                self.definition(&next, hops + 1)
            }
            _ => {
                let is_of_others =
                    rest.first().is_some_and(|name| self.0[module].of_others.contains(name));
                (!is_of_others).then(|| module.to_vec())
            }
        }
    }

    fn edges(&self) -> BTreeMap<&Steps, BTreeSet<Steps>> {
        let edges = self.0.iter().map(|(path, module)| {
            let uses = module.uses.iter().filter(|(name, _)| !module.exports.contains(*name));
            let targets = uses.map(|(_, from)| from).chain(&module.paths);
            let targets: BTreeSet<Steps> =
                targets.filter_map(|to| self.definition(to, 0)).collect();
            (path, targets.into_iter().filter(|to| to != path).collect())
        });
        edges.collect()
    }

    /// For each folder the shortest cycle of imports between what stands in it: its folders, each with all its modules, its
    /// files, and the module that the folder is. Files alone may import each other.
    fn cycles(&self) -> Vec<String> {
        let edges = self.edges();
        let mut levels: BTreeMap<&[String], Level<'_>> = BTreeMap::new();
        for (from, to) in edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, to)))
        {
            let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
            let node = |path: &'_ Steps| path.get(common).map_or("", String::as_str).to_owned();
            let level = levels.entry(&from[..common]).or_default();
            level.entry(node(from)).or_default().entry(node(to)).or_insert((from, to));
        }
        levels.iter().filter_map(|(folder, level)| self.cycle(folder, level)).collect()
    }

    fn cycle(&self, folder: &[String], level: &Level<'_>) -> Option<String> {
        let is_folder = |name: &&String| {
            let path: Steps = folder.iter().chain([*name]).cloned().collect();
            self.0.keys().any(|module| module.len() > path.len() && module.starts_with(&path))
        };
        let cycles = level.keys().filter(is_folder).filter_map(|from| {
            let ways = level[from].keys().filter_map(|to| way_back(level, to, from));
            let way = ways.min_by_key(VecDeque::len)?;
            Some(std::iter::once(from).chain(way).collect::<Vec<_>>())
        });
        let shortest = cycles.min_by_key(Vec::len)?;
        let arrows = shortest.windows(2).map(|arrow| {
            let (from, to) = level[arrow[0]][arrow[1]];
            format!("{} → {}", from.join("::"), to.join("::"))
        });
        Some(arrows.collect::<Vec<_>>().join(", "))
    }
}

/// What stands in a folder (the folder's own module has no name), what each of it imports of the rest, and by which modules.
type Level<'m> = BTreeMap<String, BTreeMap<String, (&'m Steps, &'m Steps)>>;

/// The shortest way along imports, both ends included.
fn way_back<'l>(level: &'l Level<'_>, from: &'l str, to: &'l str) -> Option<VecDeque<&'l String>> {
    let mut came_from = BTreeMap::from([(from, None)]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        if at == to {
            let mut way = VecDeque::new();
            let mut step = Some(at);
            while let Some(at) = step {
                way.push_front(level.get_key_value(at).expect("it imports").0);
                step = came_from[at];
            }
            return Some(way);
        }
        for next in level.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !came_from.contains_key(&**next) {
                came_from.insert(next, Some(at));
                queue.push_back(next);
            }
        }
    }
    None
}

impl Module {
    fn scan(&mut self, path: &[String], tokens: &[&str], children: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            let is_path = tokens.get(at + 1) == Some(&"::");
            match tokens[at] {
                "use" => {
                    let is_export = at > 0 && ["pub", ")"].contains(&tokens[at - 1]);
                    let mut leaves = Vec::new();
                    at = use_tree(tokens, at + 1, &Steps::new(), &mut leaves);
                    for (mut steps, name) in leaves {
                        let is_glob = steps.last().is_some_and(|step| step == "*");
                        steps.truncate(steps.len() - usize::from(is_glob));
                        let Some(from) = absolute(path, &steps, children) else {
                            self.of_others.insert(name);
                            continue;
                        };
                        match is_glob {
                            true if is_export => {}
                            true => self.paths.push(from),
                            false => {
                                self.exports.extend(is_export.then(|| name.clone()));
                                self.uses.insert(name, from);
                            }
                        }
                    }
                }
                _ if is_path && (at == 0 || tokens[at - 1] != "::") => {
                    let mut steps = vec![tokens[at].to_owned()];
                    while tokens.get(at + 1) == Some(&"::")
                        && tokens.get(at + 2).is_some_and(|token| is_word(token))
                    {
                        steps.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    self.paths.extend(absolute(path, &steps, children));
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }
}

/// A path from the root of the crate; `None`: it leads out of the crate, or into the prelude.
fn absolute(module: &[String], steps: &[String], children: &[String]) -> Option<Steps> {
    let ups = steps.iter().take_while(|step| *step == "super").count();
    let (base, rest) = match steps.first()?.as_str() {
        "crate" => (&[][..], &steps[1..]),
        "self" => (module, &steps[1..]),
        "super" => (&module[..module.len().checked_sub(ups)?], &steps[ups..]),
        first if children.iter().any(|child| child == first) => (module, steps),
        _ => return None,
    };
    Some(base.iter().chain(rest).cloned().collect())
}

/// Appends the paths of a `use` tree with the names they get; gives the place behind the tree.
fn use_tree(
    tokens: &[&str],
    mut at: usize,
    prefix: &Steps,
    leaves: &mut Vec<(Steps, String)>,
) -> usize {
    let mut steps = prefix.clone();
    while let Some(token) = tokens.get(at) {
        match *token {
            "::" => at += 1,
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = use_tree(tokens, at, &steps, leaves);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" => {
                leaves.push((steps, tokens[at + 1].to_owned()));
                return at + 2;
            }
            token if is_word(token) || token == "*" => {
                // `a::{self}` is `a`.
                if token != "self" || steps.is_empty() {
                    steps.push(token.to_owned());
                }
                at += 1;
            }
            _ => break,
        }
    }
    let name = steps.last().cloned().unwrap_or_default();
    leaves.push((steps, name));
    at
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and single signs; comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end_of = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
        let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            end_of("\n")
        } else if rest.starts_with("/*") {
            end_of("*/")
        } else if rest.starts_with("r\"") || rest.starts_with("r#\"") {
            let hash = if rest.starts_with("r#") { "\"#" } else { "\"" };
            rest[3..].find(hash).map_or(rest.len(), |at| 3 + at + hash.len())
        } else if first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            });
            end.map_or(rest.len(), |at| at + 2)
        } else if rest.starts_with("'\\") {
            rest[3..].find('\'').map_or(rest.len(), |at| at + 4)
        } else if first == '\'' {
            // A character ends with a quote, a lifetime does not.
            let mut after = rest.char_indices().skip(2);
            after.next().filter(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1)
        } else if is_in_word(first) {
            let length = rest.find(|c| !is_in_word(c)).unwrap_or(rest.len());
            tokens.push(&rest[..length]);
            length
        } else if rest.starts_with("::") {
            tokens.push("::");
            2
        } else {
            tokens.extend((!first.is_whitespace()).then(|| &rest[..first.len_utf8()]));
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The same without what is compiled for tests only.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_test = tokens[at..].starts_with(&["#", "[", "cfg", "(", "test"])
            || tokens[at..].starts_with(&["#", "[", "cfg", "(", "all", "(", "test"]);
        if !is_test {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        let mut depth = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match *token {
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                ";" | "," if depth == 0 => break,
                _ => {}
            }
        }
    }
    kept
}

#[test]
fn a_cycle_is_found_through_re_exports_and_not_through_tests() {
    let lib = ("lib.rs", "mod a; mod b; pub use b::inner::Thing; // crate::a::f");
    let a = ("a.rs", "use crate::Thing; pub fn f() -> char { '\"' }");
    let b = ("b/mod.rs", "pub(crate) mod inner; mod other;");
    let inner = "pub struct Thing; #[cfg(test)] mod tests { use crate::a::f; }";
    let cycles = |other| cycles(&[lib, a, b, ("b/inner.rs", inner), ("b/other.rs", other)]);
    assert_eq!(cycles("use super::inner::{self, Thing};"), Vec::<String>::new());
    let found = cycles("use super::inner::{self, Thing}; fn g() { crate::a::f(); }");
    assert_eq!(found, ["b::other → a, a → b::inner"]);
}

#[test]
fn folders_of_which_no_two_modules_import_each_other_are_a_cycle_and_files_alone_are_none() {
    let lib = ("lib.rs", "mod a; mod b; mod c;");
    let a = [("a/mod.rs", "mod x; mod y;"), ("a/x.rs", "use crate::b::x::X;"), ("a/y.rs", "")];
    let b = [("b/mod.rs", "mod x; mod y;"), ("b/x.rs", ""), ("b/y.rs", "use crate::c::C;")];
    let with = |c| cycles(&[&[lib, ("c.rs", c)][..], &a, &b].concat());
    assert_eq!(with("struct C;"), Vec::<String>::new());
    assert_eq!(with("use crate::a::y::Y;"), ["a::x → b::x, b::y → c, c → a::y"]);
    let (a, b) = (("a.rs", "use crate::b::B;"), ("b.rs", "use super::a::A;"));
    assert_eq!(cycles(&[("lib.rs", "mod a; mod b;"), a, b]), Vec::<String>::new());
}

#[test]
fn reexport_of_another_crate_is_no_import_of_the_root() {
    let lib = ("lib.rs", "mod a; use other::auth; use crate::a::x::A; pub struct Root;");
    let with = |x| cycles(&[lib, ("a/mod.rs", "mod x;"), ("a/x.rs", x)]);
    assert_eq!(with("use crate::auth::Token; pub struct A;"), Vec::<String>::new());
    assert_eq!(with("use crate::Root; pub struct A;").len(), 1);
}

fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let named = |file: &str| files.iter().find(|(name, _)| *name == file);
    Modules::of(&|file| Some(named(file)?.1.to_owned())).cycles()
}
