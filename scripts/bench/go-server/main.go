// An HTTP/2 server as Go's standard library makes it: reads each request whole and answers 200; with "vary", after times that
// vary and with refusals, as the first two digits of the device token say.
//
//	go-server ADDRESS CERTIFICATE KEY [vary [ROUND_TRIP_MS [STREAMS]]]
//
// It prints the address that it listens at, which matters for port 0; with "vary" also, at the end of its input, what it has
// accepted: a path and how often. Bytes wait half of the round trip in each direction. STREAMS may be under way on a
// connection, 250 if nothing is said.
package main

import (
	"fmt"
	"io"
	"log"
	"math"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What was asked before: how often for each token, and with which provider token first.
var (
	mutex    sync.Mutex
	asked    = map[string]int{}
	accepted = map[string]int{}
	first    string
	begin    = time.Now()
)

func note(r *http.Request) (before int, isFirst bool) {
	mutex.Lock()
	defer mutex.Unlock()
	before = asked[r.URL.Path]
	asked[r.URL.Path]++
	if first == "" {
		first = r.Header.Get("authorization")
	}
	return before, first == r.Header.Get("authorization")
}

func vary(w http.ResponseWriter, r *http.Request) (status int, body string) {
	before, isFirst := note(r)
	ms := 0.0
	defer func() { time.Sleep(time.Duration(ms * float64(time.Millisecond))) }()
	switch strings.TrimPrefix(r.URL.Path, "/3/device/")[:2] {
	case "aa":
		ms = 30
		if rand.Intn(20) == 0 {
			ms = 1
		}
	case "ab":
		ms = 5 + 25*rand.ExpFloat64()
	case "ac":
		ms = 2 + 8*math.Exp(0.8*rand.NormFloat64())
	case "ad":
		ms = 30
		if rand.Intn(2000) == 0 {
			ms = 1
		}
	case "ae":
		ms = 150
		if rand.Intn(20) == 0 {
			ms = 1
		}
	case "af":
		ms = math.Min(5*math.Pow(1-rand.Float64(), -1/1.5), 60_000)
	case "a0":
		// To four times as much within 1.5 s, and back.
		turn := math.Cos(2 * math.Pi * time.Since(begin).Seconds() / 3)
		ms = (5 + 15*rand.ExpFloat64()) * (1 + 3*(1-turn)/2)
	case "a1":
		// A slow shard: one device in eight.
		ms = 10
		if strings.HasSuffix(r.URL.Path, "0") || strings.HasSuffix(r.URL.Path, "8") {
			ms += 2_000
		}
	case "a2":
		ms = 5 + 25*rand.ExpFloat64()
		if rand.Intn(1000) == 0 {
			ms += 28_000
		}
	case "b1":
		return 410, `{"reason":"Unregistered","timestamp":"1795276142526.25"}`
	case "b2":
		w.Header().Set("x-filler", strings.Repeat("x", 32<<10))
	case "b3":
		if before == 0 {
			return 503, `{"reason":"ServiceUnavailable"}`
		}
	case "b4":
		if before == 0 {
			panic(http.ErrAbortHandler)
		}
		return 400, `{"reason":"BadDeviceToken"}`
	case "b5":
		ms = 700
	case "c0":
		return 403, `{"reason":"InvalidProviderToken"}`
	case "d0":
		if isFirst {
			ms = 50
			return 403, `{"reason":"ExpiredProviderToken"}`
		}
	}
	return 200, ""
}

func report() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	mutex.Lock()
	for path, times := range accepted {
		fmt.Println(path, times)
	}
	os.Exit(0)
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return number
}

func main() {
	if len(os.Args) < 4 || len(os.Args) > 7 {
		log.Fatal("usage: go-server ADDRESS CERTIFICATE KEY [vary [ROUND_TRIP_MS [STREAMS]]]")
	}
	varies := len(os.Args) > 4
	answer := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		status, body := http.StatusOK, ""
		if varies {
			status, body = vary(w, r)
		}
		if status == http.StatusOK && varies {
			mutex.Lock()
			accepted[r.URL.Path]++
			mutex.Unlock()
		}
		w.Header().Set("apns-id", "123e4567-e89b-12d3-a456-426614174000")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	if varies {
		go report()
	}
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	if len(os.Args) > 5 {
		listener = far{listener, time.Duration(number(os.Args[5])) * time.Millisecond / 2}
	}
	if len(os.Args) > 6 {
		setStreams(server, number(os.Args[6]))
	}
	log.Fatal(server.ServeTLS(listener, os.Args[2], os.Args[3]))
}
