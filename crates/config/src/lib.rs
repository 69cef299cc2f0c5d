//! The schema of every setting, its file form, validation and docs.
