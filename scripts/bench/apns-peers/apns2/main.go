// Pushes with apns2, so many at once, each caller the next one when it has its answer; prints a line of JSON.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sideshow/apns2"
	"github.com/sideshow/apns2/token"
	"golang.org/x/net/http2"
)

func cpu() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func main() {
	address := flag.String("address", "", "")
	roots := flag.String("roots", "", "")
	keyFile := flag.String("key", "", "")
	inFlight := flag.Int("in-flight", 1000, "")
	payload := flag.Int("payload", 437, "")
	duration := flag.Float64("seconds", 5, "")
	warmUp := flag.Float64("warm-up", 2, "")
	pushes := flag.Uint64("pushes", 0, "")
	devices := flag.Uint64("devices", math.MaxUint64, "")
	flag.Parse()

	key, err := token.AuthKeyFromFile(*keyFile)
	if err != nil {
		log.Fatal(err)
	}
	pem, err := os.ReadFile(*roots)
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatal("the file of roots holds none")
	}
	client := apns2.NewTokenClient(&token.Token{AuthKey: key, KeyID: "BENCHKEY01", TeamID: "BENCHTEAM1"})
	client.Host = "https://" + *address
	transport := client.HTTPClient.Transport.(*http2.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	// One connection is what is compared; without this it opens one more whenever the stream limit is reached.
	transport.StrictMaxConcurrentStreams = true

	filler := *payload - len(`{"aps":{"alert":""}}`)
	if filler < 0 {
		filler = 0
	}
	body := `{"aps":{"alert":"` + strings.Repeat("x", filler) + `"}}`
	var sent, failed atomic.Uint64
	var lock sync.Mutex
	answers := map[int64]uint32{}
	times := []float64{}
	var firstError string
	warmCPU, warmEnded, warm := 0.0, 0, false

	begin := time.Now()
	end := begin.Add(time.Duration(*duration * float64(time.Second)))
	var callers sync.WaitGroup
	for caller := 0; caller < *inFlight; caller++ {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for time.Now().Before(end) {
				number := sent.Add(1) - 1
				if number >= *pushes {
					return
				}
				sentAt := time.Now()
				response, err := client.Push(&apns2.Notification{
					DeviceToken: fmt.Sprintf("%039d%025x", 1, number%*devices),
					Topic:       "com.example.dunlin",
					Payload:     []byte(body),
				})
				at := time.Since(begin)
				if err == nil && !response.Sent() {
					err = fmt.Errorf("%d %s", response.StatusCode, response.Reason)
				}
				if err != nil {
					failed.Add(1)
					lock.Lock()
					if firstError == "" {
						firstError = err.Error()
					}
					lock.Unlock()
					// Whoever fails at once is not to fill the account with it.
					time.Sleep(100 * time.Millisecond)
					continue
				}
				lock.Lock()
				answers[at.Milliseconds()]++
				times = append(times, time.Since(sentAt).Seconds())
				if !warm && *warmUp > 0 && at.Seconds() >= *warmUp {
					warm, warmCPU, warmEnded = true, cpu(), len(times)
				}
				lock.Unlock()
			}
		}()
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	// What is in flight at the end is nobody's answer any more.
	select {
	case <-done:
	case <-time.After(time.Until(end)):
	}

	lock.Lock()
	defer lock.Unlock()
	seconds := time.Since(begin).Seconds()
	cpuSeconds := cpu() - warmCPU
	later := times[warmEnded:]
	sort.Float64s(later)
	quantile := func(share float64) *float64 {
		if len(later) == 0 {
			return nil
		}
		return &later[int(float64(len(later))*share)]
	}
	pairs := [][2]int64{}
	for ms, count := range answers {
		pairs = append(pairs, [2]int64{ms, int64(count)})
	}
	said, err := json.Marshal(map[string]any{
		"answers": pairs, "failed": failed.Load(), "error": firstError, "seconds": seconds,
		"p50_s": quantile(0.5), "p99_s": quantile(0.99),
		"cpu_s": cpuSeconds, "cpu_ended": len(times) - warmEnded,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(said))
}
