//! What `--help` prints.

use std::process::Command;

use crate::BENCH;

#[test]
fn help_texts_keep_their_braces() {
    for (arguments, text) in [
        (
            &["connections", "--help"][..],
            "Channel to subscribe to; `{n}` is the client's number, `{n%K}` its",
        ),
        (&["http", "--help"], "`{n%9}`, `{random:1-9}`, `{uuid}`"),
        (&["fanout", "--help"], "`{data}` stands for the message"),
    ] {
        let help = Command::new(BENCH).args(arguments).output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        let help: Vec<&str> = help.split_whitespace().collect();
        assert!(help.join(" ").contains(text), "{arguments:?}: {}", help.join(" "));
    }
}
