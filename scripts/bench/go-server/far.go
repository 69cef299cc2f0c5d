package main

import (
	"io"
	"net"
	"time"
)

// far is a listener whose connections are so far away: bytes wait for half a round trip in each direction.
type far struct {
	net.Listener
	delay time.Duration
}

func (listener far) Accept() (net.Conn, error) {
	connection, err := listener.Listener.Accept()
	if err != nil || listener.delay == 0 {
		return connection, err
	}
	return newFarConn(connection, listener.delay), nil
}

type farConn struct {
	net.Conn
	in, out chan late
	rest    []byte
}

// late is what arrives at this time.
type late struct {
	at    time.Time
	bytes []byte
}

// Pieces under way in one direction.
const pieces = 1 << 14

func newFarConn(connection net.Conn, delay time.Duration) *farConn {
	far := &farConn{connection, make(chan late, pieces), make(chan late, pieces), nil}
	go func() {
		for {
			buffer := make([]byte, 16<<10)
			count, err := connection.Read(buffer)
			if err != nil {
				close(far.in)
				return
			}
			far.in <- late{time.Now().Add(delay), buffer[:count]}
		}
	}()
	go func() {
		for piece := range far.out {
			time.Sleep(time.Until(piece.at.Add(delay)))
			if _, err := connection.Write(piece.bytes); err != nil {
				connection.Close()
			}
		}
		connection.Close()
	}()
	return far
}

func (far *farConn) Read(into []byte) (int, error) {
	if len(far.rest) == 0 {
		piece, open := <-far.in
		if !open {
			return 0, io.EOF
		}
		time.Sleep(time.Until(piece.at))
		far.rest = piece.bytes
	}
	count := copy(into, far.rest)
	far.rest = far.rest[count:]
	return count, nil
}

func (far *farConn) Write(from []byte) (int, error) {
	far.out <- late{time.Now(), append([]byte(nil), from...)}
	return len(from), nil
}
