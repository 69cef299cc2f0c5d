// Command prometheus is Prometheus' own parsers and engine, for dashboards and alert rules.
//
// It reads a JSON object from its standard input: `metrics`, two texts of `/metrics` that were read one after the other, `queries`, a map
// of names to queries, and `rules`, the text of a file of rules. It answers with one: for each query the number of series that it results
// in, or what is wrong with it; for each rule likewise.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

type question struct {
	Metrics []string          `json:"metrics"`
	Queries map[string]string `json:"queries"`
	Rules   string            `json:"rules"`
}

type result struct {
	Series int      `json:"series"`
	Names  []string `json:"names"`
	Error  string   `json:"error,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "dunlin-tsdb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	db, err := tsdb.Open(directory, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	// Each text is a scrape; they are half a minute apart.
	begin := time.Now().Add(-time.Duration(len(asked.Metrics)) * 30 * time.Second)
	for at, text := range asked.Metrics {
		if err := scrape(db, []byte(text), begin.Add(time.Duration(at)*30*time.Second)); err != nil {
			return fmt.Errorf("scrape %d: %w", at, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute})
	defer engine.Close()
	last := begin.Add(time.Duration(len(asked.Metrics)-1) * 30 * time.Second)
	evaluate := func(query string) result {
		expr, err := newParser().ParseExpr(query)
		if err != nil {
			return result{Error: err.Error()}
		}
		names := []string{}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if selector, ok := node.(*parser.VectorSelector); ok {
				names = append(names, selector.Name)
			}
			return nil
		})
		run, err := engine.NewInstantQuery(context.Background(), db, nil, query, last)
		if err != nil {
			return result{Names: names, Error: err.Error()}
		}
		defer run.Close()
		value := run.Exec(context.Background())
		if value.Err != nil {
			return result{Names: names, Error: value.Err.Error()}
		}
		switch value := value.Value.(type) {
		case promql.Vector:
			return result{Series: len(value), Names: names}
		default:
			return result{Series: 1, Names: names}
		}
	}
	answer := struct {
		Queries map[string]result `json:"queries"`
		Rules   map[string]result `json:"rules"`
	}{map[string]result{}, map[string]result{}}
	for name, query := range asked.Queries {
		answer.Queries[name] = evaluate(query)
	}
	groups, errs := rulefmt.Parse([]byte(asked.Rules), false, model.UTF8Validation, newParser(), slog.Default())
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			name := rule.Alert
			if name == "" {
				name = rule.Record
			}
			answer.Rules[name] = evaluate(rule.Expr)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func newParser() parser.Parser {
	return parser.NewParser(parser.Options{})
}

func scrape(db *tsdb.DB, text []byte, at time.Time) error {
	reader, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	appender := db.Appender(context.Background())
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := reader.Series()
		if math.IsNaN(value) {
			continue
		}
		var of labels.Labels
		reader.Labels(&of)
		of = labels.NewBuilder(of).Set("instance", "dunlin:8001").Set("job", "dunlin").Labels()
		if _, err := appender.Append(0, of, at.UnixMilli(), value); err != nil {
			return err
		}
	}
}
