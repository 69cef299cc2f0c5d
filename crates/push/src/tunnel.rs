//! Connections through a proxy: HTTP CONNECT (RFC 9110 §9.3.6) and SOCKS version 5 (RFC 1928, RFC 1929).

use std::io;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::connect::{ConnectError, ConnectFault};
use crate::origin::{Proxy, ProxyKind};

const HEAD_BYTES_MAX: usize = 8 << 10;

/// Returns the error text for a proxy that does not respond.
pub(crate) fn silence(proxy: &Proxy, host: &str, port: u16) -> String {
    let (kind, what) = match proxy.kind {
        ProxyKind::Http => ("an HTTP", "CONNECT"),
        ProxyKind::Socks5 => ("a SOCKS5", "a request for"),
    };
    format!(
        "proxy {}:{} does not answer {what} {host}:{port}; is it {kind} proxy, and can it reach {host}?",
        proxy.host, proxy.port
    )
}

/// Asks a proxy to connect.
pub(crate) async fn open(
    mut tcp: TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<TcpStream, ConnectError> {
    let result = match proxy.kind {
        ProxyKind::Http => http_connect(&mut tcp, proxy, host, port).await,
        ProxyKind::Socks5 => socks5_connect(&mut tcp, proxy, host, port).await,
    };
    let why = match result {
        Ok(()) => return Ok(tcp),
        Err(TunnelError::Refused(why)) => why,
        Err(TunnelError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let kind = match proxy.kind {
                ProxyKind::Http => "an HTTP",
                ProxyKind::Socks5 => "a SOCKS5",
            };
            format!(
                "it ends the connection without an answer; is it {kind} proxy, and are we allowed to use it?"
            )
        }
        Err(TunnelError::Io(error)) => error.to_string(),
    };
    let why = format!("proxy {}:{}: {why}", proxy.host, proxy.port);
    Err(ConnectError::new(ConnectFault::Proxy, why))
}

enum TunnelError {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for TunnelError {
    fn from(error: io::Error) -> TunnelError {
        TunnelError::Io(error)
    }
}

async fn http_connect(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), TunnelError> {
    let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some((user, password)) = &proxy.login {
        let login = BASE64_STANDARD.encode(format!("{user}:{password}"));
        head += &format!("Proxy-Authorization: Basic {login}\r\n");
    }
    head += "\r\n";
    tcp.write_all(head.as_bytes()).await?;
    // Byte by byte, because the bytes after the head belong to TLS.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= HEAD_BYTES_MAX {
            return Err(TunnelError::Refused(
                "its answer has no end; is it an HTTP proxy?".to_owned(),
            ));
        }
        answer.push(tcp.read_u8().await?);
    }
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let why = match status {
        Some(status) if status.starts_with('2') && status.len() == 3 => return Ok(()),
        // Tinyproxy answers a wrong login with 401, although 407 is the status for proxies.
        Some("401" | "407") if proxy.login.is_some() => "it does not accept the login".to_owned(),
        Some("407") => "it wants a login: http://USER:PASSWORD@HOST:PORT".to_owned(),
        Some("403") => {
            format!("its rules forbid connections to {host}:{port} ({line:?}); have them allowed")
        }
        Some("502" | "503" | "504") => {
            format!("it cannot reach {host}:{port} ({line:?}); does its own way out work?")
        }
        Some(_) => format!("it answers {line:?}; does it allow CONNECT to port {port}?"),
        None => format!("it answers {line:?}; is it an HTTP proxy?"),
    };
    Err(TunnelError::Refused(why))
}

async fn socks5_connect(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), TunnelError> {
    let refused = |why: &str| TunnelError::Refused(why.to_owned());
    let method = if proxy.login.is_some() { 2 } else { 0 };
    tcp.write_all(&[5, 1, method]).await?;
    let mut chosen = [0; 2];
    tcp.read_exact(&mut chosen).await?;
    match (chosen, &proxy.login) {
        ([5, 0], _) => {}
        ([5, 2], Some((user, password))) => {
            let (Ok(user_bytes), Ok(password_bytes)) =
                (u8::try_from(user.len()), u8::try_from(password.len()))
            else {
                return Err(refused("user or password have more than 255 bytes"));
            };
            let mut login = vec![1, user_bytes];
            login.extend_from_slice(user.as_bytes());
            login.push(password_bytes);
            login.extend_from_slice(password.as_bytes());
            tcp.write_all(&login).await?;
            let mut answer = [0; 2];
            tcp.read_exact(&mut answer).await?;
            if answer[1] != 0 {
                return Err(refused("it does not accept the login"));
            }
        }
        ([5, 0xff], None) => {
            return Err(refused("it wants a login: socks5://USER:PASSWORD@HOST:PORT"));
        }
        ([5, 0xff], Some(_)) => {
            return Err(refused("it takes no login by user and password; leave them out"));
        }
        _ => return Err(refused("it does not speak SOCKS5")),
    }
    let Ok(host_bytes) = u8::try_from(host.len()) else {
        return Err(refused("the host's name has more than 255 bytes"));
    };
    let mut request = vec![5, 1, 0, 3, host_bytes];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    tcp.write_all(&request).await?;
    let mut answer = [0; 4];
    tcp.read_exact(&mut answer).await?;
    let why = match answer[1] {
        0 => None,
        2 => Some(format!("its rules forbid connections to {host}:{port}; have them allowed")),
        3 => Some(format!("it cannot reach the network of {host}; does its own way out work?")),
        4 => Some(format!("it cannot reach {host}, or look up its name")),
        5 => Some(format!("{host}:{port} refuses its connection; is the port right?")),
        6 => Some(format!("{host}:{port} does not answer it; does its own way out work?")),
        7 => Some("it does not connect at all (command not supported)".to_owned()),
        code => Some(format!("it cannot connect to {host}:{port} (SOCKS5 code {code})")),
    };
    if let Some(why) = why {
        return Err(TunnelError::Refused(why));
    }
    // The bound address, which is not needed.
    let bytes = match answer[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(tcp.read_u8().await?),
        _ => return Err(refused("it does not speak SOCKS5")),
    };
    let mut bound = vec![0; bytes + 2];
    tcp.read_exact(&mut bound).await?;
    Ok(())
}
