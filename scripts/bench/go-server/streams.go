//go:build go1.24

package main

import "net/http"

func setStreams(server *http.Server, streams int) {
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
}
