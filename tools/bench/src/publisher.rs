//! Publishes numbered messages over one connection, in the server's protocol.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::protocol::{mqtt_connect, mqtt_publish};
use crate::swarm::{SEQUENCE_DIGITS, SEQUENCE_MARK};
use dunlin_load::client::ResponseHead;
use dunlin_load::{Context, Error};

/// A publish that is not answered within this time ends the run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// How to publish to one server.
#[derive(Debug, Clone)]
pub(crate) struct Publishing {
    pub(crate) address: SocketAddr,
    pub(crate) template: Template,
    /// Filler in each message, bytes.
    pub(crate) pad_bytes: usize,
    /// Number of the last message published before number 1, on a server that adds its own number to each message:
    /// when that number grows by a digit, the filler shrinks by one.
    pub(crate) numbered_after: Option<u32>,
}

#[derive(Debug, Clone)]
pub(crate) enum Template {
    /// A POST with a body in which `{data}` is the message. `batch_path` takes `{"commands":[{"publish":…},…]}`;
    /// without it, many messages are pipelined requests.
    Http {
        host: String,
        path: String,
        body: String,
        batch_path: Option<String>,
        api_key: Option<String>,
    },
    /// The floor program numbers and builds its messages itself.
    Floor,
    Redis {
        channel: String,
    },
    Nats {
        channel: String,
    },
    Mqtt {
        channel: String,
    },
}

impl Publishing {
    /// Returns the message with this number: JSON, whose received length is the same for every number.
    pub(crate) fn message(&self, sequence: u32) -> String {
        let digits =
            self.numbered_after.and_then(|before| before.checked_add(sequence)?.checked_ilog10());
        let pad = self.pad_bytes.saturating_sub(digits.unwrap_or(0) as usize);
        format!("{{{SEQUENCE_MARK}{sequence:0SEQUENCE_DIGITS$}\",\"pad\":\"{:y<pad$}\"}}", "")
    }

    /// Appends the bytes that publish `count` messages from number `first` on. Returns how many answers they cause.
    pub(crate) fn request(&self, first: u32, count: u32, out: &mut Vec<u8>) -> u32 {
        let sequences = first..first + count;
        match &self.template {
            Template::Http { host, path, body, batch_path, api_key } => {
                let key =
                    api_key.as_ref().map_or(String::new(), |key| format!("X-API-Key: {key}\r\n"));
                let mut post = |path: &str, body: &str| {
                    out.extend_from_slice(
                        format!(
                            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{key}\
                             Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        )
                        .as_bytes(),
                    );
                };
                let bodies =
                    sequences.map(|sequence| body.replace("{data}", &self.message(sequence)));
                match batch_path {
                    Some(batch_path) if count > 1 => {
                        let commands: Vec<String> =
                            bodies.map(|body| format!("{{\"publish\":{body}}}")).collect();
                        post(batch_path, &format!("{{\"commands\":[{}]}}", commands.join(",")));
                        1
                    }
                    _ => {
                        bodies.for_each(|body| post(path, &body));
                        count
                    }
                }
            }
            Template::Floor => {
                let path = if count == 1 { "/pub".into() } else { format!("/burst/{count}") };
                out.extend_from_slice(
                    format!("POST {path} HTTP/1.1\r\nHost: floor\r\nContent-Length: 0\r\n\r\n")
                        .as_bytes(),
                );
                1
            }
            Template::Redis { channel } => {
                for sequence in sequences {
                    let message = self.message(sequence);
                    out.extend_from_slice(
                        format!(
                            "*3\r\n$7\r\nPUBLISH\r\n${}\r\n{channel}\r\n${}\r\n{message}\r\n",
                            channel.len(),
                            message.len()
                        )
                        .as_bytes(),
                    );
                }
                count
            }
            Template::Nats { channel } => {
                for sequence in sequences {
                    let message = self.message(sequence);
                    out.extend_from_slice(
                        format!("PUB {channel} {}\r\n{message}\r\n", message.len()).as_bytes(),
                    );
                }
                // NATS answers no publish; the PONG confirms all publishes before it.
                out.extend_from_slice(b"PING\r\n");
                1
            }
            Template::Mqtt { channel } => {
                for sequence in sequences {
                    mqtt_publish(channel, self.message(sequence).as_bytes(), out);
                }
                // Quality of service 0 is not answered.
                0
            }
        }
    }

    /// Opens the connection, with the protocol's handshake if there is one.
    pub(crate) fn connect(&self) -> Result<Publisher, Error> {
        let sentence = || format!("cannot connect to {} to publish", self.address);
        let stream = TcpStream::connect(self.address).context(sentence())?;
        stream.set_nodelay(true).context(sentence())?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context(sentence())?;
        let reader = BufReader::new(stream.try_clone().context(sentence())?);
        let mut publisher = Publisher {
            publishing: self.clone(),
            writer: stream,
            answers: Answers { reader, template: self.template.clone() },
            out: Vec::new(),
        };
        match &self.template {
            Template::Nats { .. } => {
                publisher.send(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
                publisher.answers.wait(1)?;
            }
            Template::Mqtt { .. } => {
                let mut connect = Vec::new();
                mqtt_connect("publisher", &mut connect);
                publisher.send(&connect)?;
                let mut answer = [0; 4];
                publisher.answers.reader.read_exact(&mut answer).context("no CONNACK")?;
                if answer[3] != 0 {
                    return Err(Error::new(format!("CONNACK refuses with {}", answer[3])));
                }
            }
            Template::Http { .. } | Template::Floor | Template::Redis { .. } => {}
        }
        Ok(publisher)
    }
}

/// An open connection for publishing.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) publishing: Publishing,
    writer: TcpStream,
    answers: Answers,
    out: Vec<u8>,
}

impl Publisher {
    /// Publishes and waits for the answers, if the protocol has any.
    pub(crate) fn publish(&mut self, first: u32, count: u32) -> Result<(), Error> {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let answers = self.publishing.request(first, count, &mut out);
        let sent = self.send(&out);
        self.out = out;
        sent?;
        self.answers.wait(answers)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer
            .write_all(bytes)
            .context(format!("cannot publish to {}", self.publishing.address))
    }

    /// Splits the two directions, for a sender that does not wait for answers.
    pub(crate) fn split(self) -> (TcpStream, Answers) {
        (self.writer, self.answers)
    }
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Answers {
    reader: BufReader<TcpStream>,
    template: Template,
}

impl Answers {
    /// Waits for this many answers.
    ///
    /// # Errors
    /// At the first answer that is not a success, with the server's message.
    pub(crate) fn wait(&mut self, answers: u32) -> Result<(), Error> {
        for _ in 0..answers {
            match &self.template {
                Template::Http { .. } | Template::Floor => self.http()?,
                Template::Redis { .. } => {
                    let line = self.line()?;
                    if !line.starts_with(':') {
                        return Err(Error::new(format!("a publish was answered {line}")));
                    }
                }
                Template::Nats { .. } => loop {
                    let line = self.line()?;
                    if line.starts_with("PONG") {
                        break;
                    } else if line.starts_with("-ERR") {
                        return Err(Error::new(format!("a publish was answered {line}")));
                    }
                },
                Template::Mqtt { .. } => {}
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line).context("no answer to a publish")?;
        if length == 0 {
            return Err(Error::new("the server closed the connection that publishes"));
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    fn http(&mut self) -> Result<(), Error> {
        let cut = "a cut answer to a publish";
        let head = ResponseHead::read(&mut self.reader).context("no answer to a publish")?;
        let mut body = Vec::new();
        let mut read = |reader: &mut BufReader<TcpStream>, length| {
            reader.take(length).read_to_end(&mut body).context(cut)
        };
        if head.chunked {
            while let length @ 1.. = u64::from_str_radix(&self.line()?, 16).unwrap_or(0) {
                read(&mut self.reader, length)?;
                self.line()?;
            }
            self.line()?;
        } else {
            read(&mut self.reader, head.content_length.unwrap_or(0))?;
        }
        let (status, success) = (head.status, (200..300).contains(&head.status));
        // Centrifugo's API answers 200 with the error in the body.
        if success && memchr::memmem::find(&body, b"\"error\":{").is_none() {
            return Ok(());
        }
        let body = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        Err(Error::new(format!("a publish was answered {status} {body}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publishing(template: Template) -> Publishing {
        Publishing {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            template,
            pad_bytes: 3,
            numbered_after: None,
        }
    }

    #[test]
    fn a_message_has_the_same_length_whatever_its_number() {
        let publishing = publishing(Template::Nats { channel: "c".into() });
        assert_eq!(publishing.message(42), "{\"seq\":\"0000000042\",\"pad\":\"yyy\"}");
        assert_eq!(publishing.message(0).len(), publishing.message(u32::MAX).len());

        // Offset 9 and offset 10: the filler compensates for the digit.
        let publishing = Publishing { numbered_after: Some(1), ..publishing };
        assert_eq!(publishing.message(8).len(), publishing.message(9).len() + 1);
    }

    #[test]
    fn many_messages_are_one_batch_where_the_server_has_batches() {
        let http = |batch_path: Option<&str>| {
            publishing(Template::Http {
                host: "h".into(),
                path: "/api/publish".into(),
                body: "{\"channel\":\"c\",\"data\":{data}}".into(),
                batch_path: batch_path.map(str::to_owned),
                api_key: Some("k".into()),
            })
        };
        let mut out = Vec::new();
        assert_eq!(http(Some("/api/batch")).request(1, 2, &mut out), 1);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("POST /api/batch HTTP/1.1\r\n") && head.contains("X-API-Key: k\r\n")
        );
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["commands"][1]["publish"]["data"]["seq"], "0000000002");

        let mut out = Vec::new();
        assert_eq!(http(None).request(1, 2, &mut out), 2);
        assert_eq!(String::from_utf8(out).unwrap().matches("POST /api/publish").count(), 2);
    }
}
