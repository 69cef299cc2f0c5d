//! Pages name modules and items by their paths; a path that moved is one a reader looks for in vain.

use crate::repository::{Repository, report};
use crate::{is_word_of, quoted};

const PAGES: [&str; 2] = ["ARCHITECTURE.md", "docs/TERMS.md"];

/// The modules that are files: the steps from the crate on, and the text.
struct Files<'r>(Vec<(Vec<String>, &'r str)>);

impl Files<'_> {
    fn read(repository: &Repository) -> Files<'_> {
        let mut files = Vec::new();
        for name in repository.crates() {
            let src = format!("{}/src/", repository.folder(name));
            for (file, text) in repository.ending(".rs") {
                let Some(file) = file.strip_prefix(&src) else { continue };
                let file = file.strip_suffix(".rs").unwrap_or(file);
                let steps = file.split('/').filter(|step| !["mod", "lib", "main"].contains(step));
                let steps = std::iter::once(name.replace('-', "_")).chain(steps.map(str::to_owned));
                files.push((steps.collect(), text));
            }
        }
        Files(files)
    }

    /// Whether a path leads to a module or an item. One that begins with a crate is whole; another one is the end of one.
    fn have(&self, path: &str) -> bool {
        let steps: Vec<&str> = path.split("::").collect();
        let is_whole = self.0.iter().any(|(module, _)| module[0] == steps[0]);
        (1..=steps.len()).rev().any(|cut| {
            let (named, item) = steps.split_at(cut);
            let fits = |module: &[String]| {
                module.ends_with(&named.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>())
                    && (!is_whole || module.len() == named.len())
            };
            self.0.iter().any(|(module, text)| fits(module) && self.has_item(module, text, item))
        })
    }

    fn has_item(&self, module: &[String], text: &str, item: &[&str]) -> bool {
        match item {
            [] => true,
            // A type may be of a module below, which the named one exports.
            [name, ..] if name.starts_with(char::is_uppercase) => {
                let below = self.0.iter().filter(|(of, _)| of.starts_with(module));
                let below: Vec<&str> = below.map(|(_, text)| *text).collect();
                item.iter().all(|name| below.iter().any(|text| is_word_of(text, name)))
            }
            [name] => {
                let exports =
                    text.split("pub use ").skip(1).filter_map(|use_| use_.split(';').next());
                let below = self.0.iter().filter(|(of, _)| of.starts_with(module));
                is_word_of(text, &format!("fn {name}"))
                    || exports.into_iter().any(|names| is_word_of(names, name))
                    || name.strip_suffix('!').is_some_and(|name| {
                        let macro_ = format!("macro_rules! {name}");
                        below.into_iter().any(|(_, text)| is_word_of(text, &macro_))
                    })
            }
            _ => false,
        }
    }
}

/// `a::{b, c}` is two paths.
fn spelled_out(path: &str) -> Vec<String> {
    match path.split_once('{') {
        Some((before, rest)) => {
            let (names, after) = rest.split_once('}').unwrap_or((rest, ""));
            let names = names.split(',').map(str::trim).filter(|name| *name != "…");
            names.map(|name| format!("{before}{name}{after}")).collect()
        }
        None => vec![path.to_owned()],
    }
}

#[test]
fn path_that_a_page_names_leads_somewhere() {
    let repository = Repository::read();
    let files = Files::read(&repository);
    let mut complaints = Vec::new();
    let mut seen = 0;
    for page in PAGES {
        let paths = quoted(repository.text(page)).filter(|quoted| {
            let begins_low = quoted.starts_with(|c: char| c.is_ascii_lowercase());
            begins_low && quoted.contains("::")
        });
        for path in paths.flat_map(spelled_out) {
            seen += 1;
            if !files.have(&path) {
                complaints.push(format!("{page} names `{path}`, which is nowhere"));
            }
        }
    }
    assert!(seen > 200, "only {seen} were found");
    assert!(files.have("hub::Hub::handle_publish") && !files.have("hub::handle_nothing"));
    report(&complaints);
}
