use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::ProgramError;
use crate::hook::Hook;
use crate::limits::Limits;
#[cfg(feature = "luau")]
use crate::luau;
use crate::machine::Machine;
use crate::store::Store;

/// The longest source of a program, in bytes.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// What a program keeps under names on one thread, in bytes.
pub(crate) const KV_BYTES_MAX: usize = 1 << 20;

/// A compiled program. Clones share it.
#[derive(Clone)]
pub struct Code {
    name: Arc<str>,
    bytecode: Arc<[u8]>,
    hooks: Arc<[Hook]>,
    speaks: bool,
    upgrades: bool,
}

impl Code {
    /// Compiles a program and starts it once, so that what is wrong outside its functions is found too.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn compile(name: &str, source: &str, limits: Limits) -> Result<Code, ProgramError> {
        let error =
            |message: String| ProgramError { program: name.to_owned(), line: None, message };
        if source.len() > SOURCE_BYTES_MAX {
            return Err(error(format!(
                "the source has {} bytes; {SOURCE_BYTES_MAX} are allowed. Leave out what it does not need, or make two programs of it",
                source.len()
            )));
        }
        let bytecode: Arc<[u8]> = bytecode(name, source)?.into();
        let mut code = Code {
            name: name.into(),
            bytecode,
            hooks: Arc::default(),
            speaks: false,
            upgrades: false,
        };
        let machine = code.start(limits, &Rc::new(RefCell::new(Store::new(KV_BYTES_MAX))))?;
        code.hooks = Hook::ALL.into_iter().filter(|hook| machine.defines(*hook)).collect();
        code.speaks = machine.speaks();
        code.upgrades = machine.upgrades();
        if code.hooks.is_empty() && !code.speaks {
            return Err(error(
                "it returns no table with a hook; end it with `return { publish = function(event) ... end }`, or for a protocol with `return { frame = function(conn, frame) ... end }`".into(),
            ));
        }
        Ok(code)
    }

    /// Returns the program's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the program has a function for this hook.
    pub fn defines(&self, hook: Hook) -> bool {
        self.hooks.contains(&hook)
    }

    /// Whether the program speaks a protocol: it has a function for frames.
    pub fn speaks(&self) -> bool {
        self.speaks
    }

    /// Whether connections of an earlier program may be given to this one.
    pub fn upgrades(&self) -> bool {
        self.upgrades
    }

    /// Whether both are the same compiled program.
    pub fn is_same(&self, other: &Code) -> bool {
        Arc::ptr_eq(&self.bytecode, &other.bytecode)
    }

    /// Starts the program in a machine of its own. `kv` is what it keeps on this thread, also beyond its end.
    ///
    /// # Errors
    /// What stands outside its functions has failed, with its line.
    pub fn start(
        &self,
        limits: Limits,
        kv: &Rc<RefCell<Store>>,
    ) -> Result<Box<dyn Machine>, ProgramError> {
        machine(&self.name, &self.bytecode, limits, kv)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Code")
            .field("name", &self.name)
            .field("hooks", &self.hooks)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "luau")]
fn bytecode(name: &str, source: &str) -> Result<Vec<u8>, ProgramError> {
    luau::compile(name, source)
}

#[cfg(feature = "luau")]
fn machine(
    name: &str,
    bytecode: &[u8],
    limits: Limits,
    kv: &Rc<RefCell<Store>>,
) -> Result<Box<dyn Machine>, ProgramError> {
    Ok(Box::new(luau::Luau::start(name, bytecode, limits, Rc::clone(kv))?))
}

#[cfg(not(feature = "luau"))]
fn bytecode(name: &str, _: &str) -> Result<Vec<u8>, ProgramError> {
    let message = "this build runs no programs; build it with the feature `programs`".to_owned();
    Err(ProgramError { program: name.to_owned(), line: None, message })
}

#[cfg(not(feature = "luau"))]
fn machine(
    name: &str,
    _: &[u8],
    _: Limits,
    _: &Rc<RefCell<Store>>,
) -> Result<Box<dyn Machine>, ProgramError> {
    bytecode(name, "").map(|_| unreachable!("there is no code without a language"))
}
