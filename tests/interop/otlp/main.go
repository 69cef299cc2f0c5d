// Command otlp is the receiver of the OpenTelemetry Collector: it prints every request that it takes as a line of JSON.
//
//	otlp PORT
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

var printing sync.Mutex

func line(text []byte, err error) error {
	if err != nil {
		return err
	}
	printing.Lock()
	defer printing.Unlock()
	_, err = os.Stdout.Write(append(text, '\n'))
	return err
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC = configoptional.None[configgrpc.ServerConfig]()
	http := config.Protocols.HTTP.GetOrInsertDefault()
	http.ServerConfig.NetAddr.Endpoint = "127.0.0.1:" + os.Args[1]
	traces, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		return line((&ptrace.JSONMarshaler{}).MarshalTraces(traces))
	})
	if err != nil {
		return err
	}
	metrics, err := consumer.NewMetrics(func(_ context.Context, metrics pmetric.Metrics) error {
		return line((&pmetric.JSONMarshaler{}).MarshalMetrics(metrics))
	})
	if err != nil {
		return err
	}
	settings := receivertest.NewNopSettings(factory.Type())
	receiver, err := factory.CreateTraces(context.Background(), settings, config, traces)
	if err != nil {
		return err
	}
	// The same component under the hood: it serves both.
	if _, err := factory.CreateMetrics(context.Background(), settings, config, metrics); err != nil {
		return err
	}
	if err := receiver.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		return err
	}
	fmt.Println(`{"ready":true}`)
	select {}
}
