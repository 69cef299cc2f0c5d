//go:build !go1.24

package main

import (
	"log"
	"net/http"
)

func setStreams(*http.Server, int) {
	log.Fatal("go-server: STREAMS needs Go 1.24 or later")
}
