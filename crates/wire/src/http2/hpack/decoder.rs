//! Decoding of header blocks (§3.2, §6).

use super::table::Table;
use super::{Error, huffman, integer};

/// Decodes the header blocks of one direction of a connection, in order of arrival.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The announced HEADER_TABLE_SIZE: the encoder may use a smaller table, not a larger one.
    table_bytes_max: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// `table_bytes_max` is the HEADER_TABLE_SIZE that this side announced, or 4,096 by default.
    pub fn new(table_bytes_max: usize) -> Decoder {
        Decoder {
            table: Table::new(table_bytes_max),
            table_bytes_max,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Calls `field` with each name and value. A list larger than `list_bytes_max` (name, value and
    /// 32 bytes for each field, RFC 9113 §6.5.2) is decoded to its end to keep the table
    /// synchronised, but not passed on.
    ///
    /// # Errors
    ///
    /// After [`Error::ListTooLong`] the decoder remains usable; after any other error it does not.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        list_bytes_max: usize,
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Error> {
        let mut list_bytes = 0;
        let mut fields = 0;
        let mut emit = |name: &[u8], value: &[u8]| {
            list_bytes += name.len() + value.len() + 32;
            if list_bytes <= list_bytes_max {
                field(name, value);
            }
        };
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = integer::decode(&mut block, 7)?;
                let (name, value) = self.table.get(index).ok_or(Error::Index)?;
                emit(name, value);
            } else if first & 0xe0 == 0x20 {
                let bytes_max = integer::decode(&mut block, 5)?;
                if fields > 0 || bytes_max > self.table_bytes_max {
                    return Err(Error::TableSize);
                }
                self.table.resize(bytes_max);
                continue;
            } else {
                let indexed = first & 0x40 != 0;
                let index = integer::decode(&mut block, if indexed { 6 } else { 4 })?;
                self.name.clear();
                self.value.clear();
                if index == 0 {
                    string(&mut block, &mut self.name)?;
                } else {
                    let (name, _) = self.table.get(index).ok_or(Error::Index)?;
                    self.name.extend_from_slice(name);
                }
                string(&mut block, &mut self.value)?;
                emit(&self.name, &self.value);
                if indexed {
                    self.table.insert(&self.name, &self.value);
                }
            }
            fields += 1;
        }
        if list_bytes > list_bytes_max { Err(Error::ListTooLong) } else { Ok(()) }
    }
}

fn string(block: &mut &[u8], text: &mut Vec<u8>) -> Result<(), Error> {
    let coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer::decode(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Error::Length)?;
    *block = rest;
    if coded {
        return huffman::decode(text, bytes);
    }
    text.extend_from_slice(bytes);
    Ok(())
}
