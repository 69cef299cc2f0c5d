//! Encoding of header blocks (§6).

use super::table::{Match, Table};
use super::{TABLE_BYTES_DEFAULT, huffman, integer};

/// Whether a field is added to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Added to the table, because it will be repeated.
    Table,
    /// Not added: its value differs each time, such as a path with a device token, and would evict
    /// others.
    None,
    /// Never added: a secret, which proxies must not add to their tables either (§7.1.3).
    Never,
}

/// Encodes the header blocks of one direction of a connection, in the order they are sent.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Table sizes to announce at the start of the next block: the smallest since the last one, and
    /// the final.
    resized: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new()
    }
}

impl Encoder {
    /// Creates an encoder with the default table of 4,096 bytes.
    pub fn new() -> Encoder {
        Encoder { table: Table::new(TABLE_BYTES_DEFAULT), resized: None }
    }

    /// Adopts the peer's HEADER_TABLE_SIZE, at most 4,096 bytes: searching a larger table costs
    /// more than it saves.
    pub fn set_table_size(&mut self, bytes: u32) {
        let bytes = (bytes as usize).min(TABLE_BYTES_DEFAULT);
        if bytes == self.table.bytes_max() && self.resized.is_none() {
            return;
        }
        self.table.resize(bytes);
        let smallest = self.resized.map_or(bytes, |(smallest, _)| smallest.min(bytes));
        self.resized = Some((smallest, bytes));
    }

    /// Appends a field to the block. The name must be in lower case (RFC 9113 §8.2.1).
    #[inline]
    pub fn encode(&mut self, block: &mut Vec<u8>, name: &[u8], value: &[u8], indexing: Indexing) {
        if let Some((smallest, last)) = self.resized.take() {
            if smallest < last {
                integer::encode(block, 0x20, 5, smallest);
            }
            integer::encode(block, 0x20, 5, last);
        }
        let found = self.table.find(name, value);
        if let (Match::Field(index), Indexing::Table | Indexing::None) = (found, indexing) {
            integer::encode(block, 0x80, 7, index);
            return;
        }
        let (flags, prefix_bits) = match indexing {
            Indexing::Table => (0x40, 6),
            Indexing::None => (0x00, 4),
            Indexing::Never => (0x10, 4),
        };
        match found {
            Match::Field(index) | Match::Name(index) => {
                integer::encode(block, flags, prefix_bits, index);
            }
            Match::Nothing => {
                block.push(flags);
                string(block, name);
            }
        }
        string(block, value);
        if indexing == Indexing::Table {
            self.table.insert(name, value);
        }
    }
}

/// Appends a string, Huffman-coded if that is shorter.
#[inline]
fn string(block: &mut Vec<u8>, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        integer::encode(block, 0x80, 7, coded);
        huffman::encode(block, text);
    } else {
        integer::encode(block, 0, 7, text.len());
        block.extend_from_slice(text);
    }
}
