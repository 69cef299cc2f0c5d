//! The mesh between workers: rings, doorbells, request and reply.
