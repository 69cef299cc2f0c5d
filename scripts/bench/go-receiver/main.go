// A backend of webhooks on Go's net/http: parses each request, counts events, and notes when each came.
//
//	go-receiver ADDRESS
//
// Events are publications whose data is {"seq": number, "at": nanoseconds since 1970 when it was due, or 0}.
//
//	GET /report       what came since the last reset
//	DELETE /report    begins anew
//	GET /count        how many different events came
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"
)

type event struct {
	Event   string
	Channel string
	Count   int
	Data    struct{ Seq, At int64 }
}

type percentiles struct {
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

type report struct {
	Requests   int         `json:"requests"`
	Events     int         `json:"events"`
	Distinct   int         `json:"distinct"`
	Disordered int         `json:"disordered"`
	Missed     int         `json:"missed"`
	LastNs     int64       `json:"last_ns"`
	LatencyUs  percentiles `json:"latency_us"`
}

type record struct {
	sync.Mutex
	report
	seen   []bool
	newest map[string]int64
	tookNs []int64
}

func (r *record) reset() {
	r.report, r.seen, r.tookNs = report{}, nil, nil
	r.newest = make(map[string]int64)
}

func (r *record) take(events []event, now int64) {
	r.Requests++
	for _, event := range events {
		if event.Event == "missed" {
			r.Missed += event.Count
		}
		if event.Event != "publish" || event.Data.Seq <= 0 || event.Data.Seq > 1<<30 {
			continue
		}
		r.Events++
		seq := event.Data.Seq
		for int64(len(r.seen)) <= seq {
			r.seen = append(r.seen, false)
		}
		if r.seen[seq] {
			continue
		}
		r.seen[seq] = true
		r.Distinct++
		r.LastNs = now
		if seq < r.newest[event.Channel] {
			r.Disordered++
		} else {
			r.newest[event.Channel] = seq
		}
		if event.Data.At > 0 {
			r.tookNs = append(r.tookNs, now-event.Data.At)
		}
	}
}

func (r *record) summary() report {
	took := r.tookNs
	summary := r.report
	if len(took) == 0 {
		return summary
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	at := func(quantile float64) float64 {
		return float64(took[int(quantile*float64(len(took)-1))]) / 1e3
	}
	sum := 0.0
	for _, ns := range took {
		sum += float64(ns) / 1e3
	}
	summary.LatencyUs = percentiles{at(0), at(0.5), at(0.9), at(0.99), at(0.999), at(1), sum / float64(len(took))}
	return summary
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go-receiver ADDRESS")
	}
	var all record
	all.reset()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		now := time.Now().UnixNano()
		var events []event
		if err == nil {
			err = json.Unmarshal(body, &events)
		}
		if r.Method != http.MethodPost || err != nil {
			http.Error(w, "post an array of events", http.StatusBadRequest)
			return
		}
		all.Lock()
		all.take(events, now)
		all.Unlock()
	})
	http.HandleFunc("/report", func(w http.ResponseWriter, r *http.Request) {
		all.Lock()
		defer all.Unlock()
		if r.Method == http.MethodDelete {
			all.reset()
			return
		}
		if err := json.NewEncoder(w).Encode(all.summary()); err != nil {
			log.Print(err)
		}
	})
	http.HandleFunc("/count", func(w http.ResponseWriter, r *http.Request) {
		all.Lock()
		count := all.Distinct
		all.Unlock()
		if _, err := io.WriteString(w, strconv.Itoa(count)); err != nil {
			log.Print(err)
		}
	})
	log.Fatal(http.ListenAndServe(os.Args[1], nil))
}
