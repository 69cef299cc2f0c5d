// An HTTP/2 server as Go's standard library makes it: reads each request whole and answers 200; with two times, one answer in
// twenty after the first and the others after the second.
//
//	go-server ADDRESS CERTIFICATE KEY [FAST SLOW]
package main

import (
	"io"
	"log"
	"math/rand"
	"net/http"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 4 && len(os.Args) != 6 {
		log.Fatal("usage: go-server ADDRESS CERTIFICATE KEY [FAST SLOW]")
	}
	var times []time.Duration
	for _, text := range os.Args[4:] {
		parsed, err := time.ParseDuration(text)
		if err != nil {
			log.Fatal(err)
		}
		times = append(times, parsed)
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		if len(times) == 2 {
			if rand.Intn(20) == 0 {
				time.Sleep(times[0])
			} else {
				time.Sleep(times[1])
			}
		}
		w.Header().Set("apns-id", "123e4567-e89b-12d3-a456-426614174000")
		w.WriteHeader(http.StatusOK)
	}
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], http.HandlerFunc(answer)))
}
