//! Event loop, timing wheel, and TCP, HTTP and WebSocket servers and clients.
