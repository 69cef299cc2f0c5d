//! Load generator and its reports.
