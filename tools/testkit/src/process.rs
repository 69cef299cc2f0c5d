use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};

/// A process that is killed when its owner is dropped.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Reads the output of a server that starts up to the line for which `line` returns a value; `None` if it ends before. Further
    /// output is drained, so that the server never waits for a reader.
    pub(crate) fn until<T>(
        mut child: Child,
        output: impl Read + Send + 'static,
        line: impl FnMut(String) -> Option<T>,
    ) -> Option<(Process, T)> {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let Some(found) = lines.by_ref().find_map(line) else {
            let _ = child.wait();
            return None;
        };
        std::thread::spawn(move || lines.for_each(drop));
        Some((Process(child), found))
    }

    /// Sends a signal as `kill` names it: `-STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().expect("kill runs");
        assert!(sent.success(), "kill {name} {pid}");
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
