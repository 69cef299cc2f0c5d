// An HTTP/2 server as Go's standard library makes it: reads each request whole and answers 200.
//
//	go-server ADDRESS CERTIFICATE KEY
package main

import (
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: go-server ADDRESS CERTIFICATE KEY")
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("apns-id", "123e4567-e89b-12d3-a456-426614174000")
		w.WriteHeader(http.StatusOK)
	}
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], http.HandlerFunc(answer)))
}
