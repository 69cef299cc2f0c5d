//! Peer addresses, interned: a connection keeps four bytes, and gives its address back when it closes even
//! though the kernel no longer knows it by then.

use std::net::IpAddr;

use hashbrown::HashMap;

/// The addresses of one worker's connections.
#[derive(Default)]
pub(crate) struct PeerAddresses {
    places: HashMap<IpAddr, u32, foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

struct Entry {
    address: IpAddr,
    connections: u32,
    /// Those of them whose peer has shown who it is.
    authenticated: u32,
}

impl PeerAddresses {
    /// The place of `address`, with one connection more.
    pub(crate) fn intern(&mut self, address: IpAddr) -> u32 {
        if let Some(&place) = self.places.get(&address) {
            self.entries[place as usize].connections += 1;
            return place;
        }
        let entry = Entry { address, connections: 1, authenticated: 0 };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.places.insert(address, place);
        place
    }

    /// The address at `place`.
    pub(crate) fn get(&self, place: u32) -> Option<IpAddr> {
        self.entries.get(place as usize).map(|entry| entry.address)
    }

    /// The address at `place`, of which one connection's peer has shown who it is. `None` for a place that nobody has.
    pub(crate) fn authenticate(&mut self, place: u32) -> Option<IpAddr> {
        let entry = self.entries.get_mut(place as usize)?;
        entry.authenticated += 1;
        Some(entry.address)
    }

    /// The address at `place`, with one connection less. `None` for a place that nobody has.
    pub(crate) fn release(&mut self, place: u32, authenticated: bool) -> Option<IpAddr> {
        let entry = self.entries.get_mut(place as usize)?;
        let address = entry.address;
        entry.connections -= 1;
        entry.authenticated -= u32::from(authenticated);
        if entry.connections == 0 {
            self.places.remove(&address);
            self.free.push(place);
        }
        Some(address)
    }

    /// All of them, once for each connection, with whether its peer has shown who it is; none is left.
    pub(crate) fn release_all(&mut self) -> impl Iterator<Item = (IpAddr, bool)> + use<> {
        let Self { entries, .. } = std::mem::take(self);
        entries.into_iter().flat_map(|Entry { address, connections, authenticated }| {
            (0..connections).map(move |connection| (address, connection < authenticated))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_place_until_its_last_connection_leaves() {
        let mut addresses = PeerAddresses::default();
        let one = IpAddr::from([127, 0, 0, 1]);
        let two = IpAddr::from([127, 0, 0, 2]);
        let place = addresses.intern(one);
        assert_eq!(addresses.intern(one), place);
        assert_ne!(addresses.intern(two), place);
        assert_eq!(addresses.authenticate(place), Some(one));
        assert_eq!(addresses.release(place, false), Some(one));
        assert_eq!(addresses.release(place, true), Some(one));
        assert_eq!(addresses.intern(IpAddr::from([127, 0, 0, 3])), place, "the place is reused");
        assert_eq!(addresses.release(u32::MAX, false), None);
        assert_eq!(addresses.places.len(), 2);
        let place = addresses.intern(two);
        addresses.authenticate(place);
        let mut all: Vec<(IpAddr, bool)> = addresses.release_all().collect();
        all.sort();
        assert_eq!(all, [(two, false), (two, true), (IpAddr::from([127, 0, 0, 3]), false)]);
        assert_eq!(addresses.release_all().count(), 0);
    }
}
