//! Workers, server API and control thread of the push server.
