//! SIGHUP: reads the configuration's file and the files of certificates anew. What has changed in the file since it was read
//! last becomes a change like any other; what is invalid changes nothing, and the log names its line.

use dunlin_config::store::Origin;

use super::commit::{ReplyTo, SubmittedChange};
use super::problem::ProblemDetails;
use super::{Admin, Cx, unix_ms};

impl Admin {
    pub(super) fn reload(&mut self, cx: &mut Cx) {
        // Those of an unchanged file are read, too: a file may be replaced within a second.
        self.certificate_files.clear();
        self.reopen_certificates();
        let name = self.store.file_name().to_owned();
        let Some(reload) = &self.reload else {
            return tracing::warn!("SIGHUP: there is no configuration file to read again");
        };
        let file = match reload() {
            Ok(file) => file.into_inner(),
            Err(fault) => {
                fault.lines().for_each(|line| tracing::error!("{}", line.trim()));
                return tracing::error!(
                    file = name,
                    "SIGHUP: nothing is changed, for the file is invalid"
                );
            }
        };
        let Some(change) = self.store.edits(&file) else {
            return tracing::error!(
                file = name,
                "SIGHUP: what the file was is not known any more; restart, or use `dunlin config apply`"
            );
        };
        self.reloading = Some(file);
        let origin = Origin {
            who: "SIGHUP".into(),
            from: name.as_str().into(),
            comment: format!("{name} was read again").into(),
            at_unix_ms: unix_ms(),
            ..Origin::default()
        };
        let submitted = SubmittedChange {
            to: ReplyTo::File,
            change,
            expected: None,
            origin,
            secrets: true,
            durable: false,
            canary: None,
        };
        self.submit(cx, submitted);
    }

    /// What differed in the file is in effect.
    pub(super) fn file_taken_over(&mut self, revision: u64) {
        let Some(file) = self.reloading.take() else { return };
        self.store.file_taken_over(&file);
        tracing::info!(file = self.store.file_name(), revision, "SIGHUP: the file was read again");
    }

    pub(super) fn file_refused(&mut self, problem: &ProblemDetails) {
        self.reloading = None;
        for line in problem.lines() {
            tracing::error!("{line}");
        }
        tracing::error!(
            file = self.store.file_name(),
            "SIGHUP: nothing is changed, for what differs in the file does not go with the present settings"
        );
    }
}
