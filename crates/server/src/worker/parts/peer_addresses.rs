//! Peer addresses, interned: a connection keeps four bytes, and gives its address back when it closes even
//! though the kernel no longer knows it by then.

use std::net::IpAddr;

use hashbrown::HashMap;

use crate::limits::admission::CountedAddress;
use crate::worker::link::Peer;

/// The addresses of one worker's connections.
#[derive(Default)]
pub(crate) struct PeerAddresses {
    places: HashMap<PeerAddress, u32, foldhash::fast::RandomState>,
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// A whole address, and how much of it counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PeerAddress {
    address: IpAddr,
    /// `limits.ipv6_prefix_bits` when the connection was counted, so that it is given back as it was taken.
    ipv6_prefix_bits: u8,
}

impl PeerAddress {
    fn counted(self) -> CountedAddress {
        CountedAddress::of(self.address, self.ipv6_prefix_bits)
    }
}

struct Entry {
    peer: PeerAddress,
    connections: u32,
    /// Those of them whose peer has shown who it is.
    authenticated: u32,
}

// Each client may have an address of its own.
const _: () = assert!(size_of::<Entry>() == 28);

impl PeerAddresses {
    /// The place of `address`, with one connection more.
    pub(crate) fn intern(&mut self, address: IpAddr, ipv6_prefix_bits: u8) -> u32 {
        let peer = PeerAddress { address: address.to_canonical(), ipv6_prefix_bits };
        if let Some(&place) = self.places.get(&peer) {
            self.entries[place as usize].connections += 1;
            return place;
        }
        let entry = Entry { peer, connections: 1, authenticated: 0 };
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
        self.places.insert(peer, place);
        place
    }

    fn get(&self, peer: Peer) -> Option<PeerAddress> {
        self.entries.get(peer.place() as usize).map(|entry| entry.peer)
    }

    /// The whole address of a peer, to be shown.
    pub(crate) fn address(&self, peer: Peer) -> Option<IpAddr> {
        self.get(peer).map(|of| of.address)
    }

    /// What a peer counts as, in limits.
    pub(crate) fn counted(&self, peer: Peer) -> Option<CountedAddress> {
        self.get(peer).map(PeerAddress::counted)
    }

    /// Marks one connection of a peer's address as authenticated. `None` for a peer without an address.
    pub(crate) fn authenticate(&mut self, peer: Peer) -> Option<CountedAddress> {
        let entry = self.entries.get_mut(peer.place() as usize)?;
        entry.authenticated += 1;
        Some(entry.peer.counted())
    }

    /// Releases one connection of a peer's address. `None` for a peer without an address.
    pub(crate) fn release(&mut self, peer: Peer) -> Option<CountedAddress> {
        let place = peer.place();
        let entry = self.entries.get_mut(place as usize)?;
        let address = entry.peer;
        entry.connections -= 1;
        entry.authenticated -= u32::from(peer.is_authenticated());
        if entry.connections == 0 {
            self.places.remove(&address);
            self.free.push(place);
        }
        Some(address.counted())
    }

    /// All of them, once for each connection, with whether its peer has shown who it is; none is left.
    pub(crate) fn release_all(&mut self) -> impl Iterator<Item = (CountedAddress, bool)> + use<> {
        let Self { entries, .. } = std::mem::take(self);
        entries.into_iter().flat_map(|Entry { peer, connections, authenticated }| {
            (0..connections).map(move |connection| (peer.counted(), connection < authenticated))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(address: &str) -> CountedAddress {
        CountedAddress::of(address.parse().unwrap(), 64)
    }

    #[test]
    fn an_address_keeps_its_place_until_its_last_connection_leaves() {
        let mut addresses = PeerAddresses::default();
        let (one, two) = ("127.0.0.1", "127.0.0.2");
        let intern = |addresses: &mut PeerAddresses, address: &str| {
            Peer::new(addresses.intern(address.parse().unwrap(), 64), false)
        };
        let peer = intern(&mut addresses, one);
        assert_eq!(intern(&mut addresses, one).place(), peer.place());
        assert_ne!(intern(&mut addresses, two).place(), peer.place());
        assert_eq!(addresses.authenticate(peer), Some(counted(one)));
        assert_eq!(addresses.release(peer), Some(counted(one)));
        assert_eq!(addresses.release(peer.authenticated()), Some(counted(one)));
        let three = intern(&mut addresses, "127.0.0.3");
        assert_eq!(three.place(), peer.place(), "the place is reused");
        assert_eq!(addresses.release(Peer::UNKNOWN), None);
        assert_eq!(addresses.places.len(), 2);
        let peer = intern(&mut addresses, two);
        addresses.authenticate(peer);
        let mut all: Vec<_> = addresses.release_all().collect();
        all.sort();
        assert_eq!(
            all,
            [(counted(two), false), (counted(two), true), (counted("127.0.0.3"), false)]
        );
        assert_eq!(addresses.release_all().count(), 0);
    }

    /// Regression test: the network that counts for limits was kept and shown, so a client on `::1` was listed as `::`.
    #[test]
    fn an_ipv6_peer_is_shown_whole_and_counted_by_its_network() {
        let mut addresses = PeerAddresses::default();
        let mut peer = |address: &str, bits| {
            let place = addresses.intern(address.parse().unwrap(), bits);
            let peer = Peer::new(place, false);
            (addresses.address(peer).unwrap().to_string(), addresses.counted(peer).unwrap())
        };
        assert_eq!(peer("::1", 64), ("::1".to_owned(), counted("::")));
        assert_eq!(peer("2001:db8::7", 64), ("2001:db8::7".to_owned(), counted("2001:db8::")));
        assert_eq!(peer("2001:db8::8", 64), ("2001:db8::8".to_owned(), counted("2001:db8::")));
        assert_eq!(peer("::ffff:192.0.2.7", 64).0, "192.0.2.7");
        let whole = CountedAddress::of("2001:db8::7".parse().unwrap(), 128);
        assert_eq!(peer("2001:db8::7", 128), ("2001:db8::7".to_owned(), whole), "set anew");
    }
}
