//! A proxy to a server that can hold bytes back, including those of connections that their client has given up.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use super::Addresses;

/// The direction from a client to the server.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Bytes held back; `None`: they pass.
    held: Mutex<Option<Vec<u8>>>,
}

/// A connection, and the thread that carries the server's answers until it closes.
type Carried = (Arc<Connection>, JoinHandle<()>);

/// A proxy to a server. It lives as long as the test's process.
pub struct Way {
    pub at: SocketAddr,
    connections: Arc<Mutex<Vec<Carried>>>,
}

impl Way {
    pub fn to(server: SocketAddr) -> Way {
        let at = SocketAddr::new(Addresses::new().client.ip(), server.port());
        let listener = TcpListener::bind(at).unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&connections);
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If the server is down, the client's connection is closed too.
                if let Ok(server) = TcpStream::connect(server) {
                    let connection = Connection { client, server, held: Mutex::new(None) };
                    all.lock().unwrap().push(carry(Arc::new(connection)));
                }
            }
        });
        Way { at, connections }
    }

    /// Holds back what the existing connections send from now on.
    pub fn hold(&self) {
        for (connection, _) in &*self.connections.lock().unwrap() {
            connection.held.lock().unwrap().get_or_insert_default();
        }
    }

    /// Returns whether the bytes held back contain a text.
    pub fn holds(&self, text: &str) -> bool {
        self.connections.lock().unwrap().iter().any(|(connection, _)| {
            let held = connection.held.lock().unwrap();
            let held = held.as_deref().unwrap_or_default();
            held.windows(text.len()).any(|part| part == text.as_bytes())
        })
    }

    /// Closes the client side of connections that are held back. New connections pass.
    pub fn cut(&self) {
        for (connection, _) in &*self.connections.lock().unwrap() {
            if connection.held.lock().unwrap().is_some() {
                // Fails only if the client has already closed it.
                let _ = connection.client.shutdown(Shutdown::Both);
            }
        }
    }

    /// Delivers the bytes held back, and waits until the server has processed them and closed.
    pub fn release(&self) {
        let all: Vec<_> = self.connections.lock().unwrap().drain(..).collect();
        for (connection, answers) in all {
            let Some(held) = connection.held.lock().unwrap().take() else {
                self.connections.lock().unwrap().push((Arc::clone(&connection), answers));
                continue;
            };
            // The server may have closed it after a timeout.
            let _ = (&connection.server).write_all(&held);
            let _ = connection.server.shutdown(Shutdown::Write);
            answers.join().unwrap();
        }
    }
}

fn carry(connection: Arc<Connection>) -> Carried {
    let of_client = Arc::clone(&connection);
    spawn(move || {
        let Connection { client, server, held } = &*of_client;
        let (mut client, mut server, mut piece) = (client, server, [0; 16 << 10]);
        while let Ok(read @ 1..) = client.read(&mut piece) {
            match &mut *held.lock().unwrap() {
                Some(held) => held.extend_from_slice(&piece[..read]),
                None => _ = server.write_all(&piece[..read]),
            }
        }
        if held.lock().unwrap().is_none() {
            let _ = server.shutdown(Shutdown::Both);
        }
    });
    let of_server = Arc::clone(&connection);
    let answers = spawn(move || {
        let Connection { client, server, .. } = &*of_server;
        let (mut client, mut server, mut piece) = (client, server, [0; 16 << 10]);
        while let Ok(read @ 1..) = server.read(&mut piece) {
            // The client may have closed it.
            let _ = client.write_all(&piece[..read]);
        }
        let _ = client.shutdown(Shutdown::Both);
    });
    (connection, answers)
}
