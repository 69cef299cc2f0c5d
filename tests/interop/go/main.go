// centrifuge-go as a member of a channel: does what every SDK does once, then prints what it hears, a line each.
//
//	member json|protobuf URL CHANNEL
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

func main() {
	format, url, channel := os.Args[1], os.Args[2], os.Args[3]
	config := centrifuge.Config{MinReconnectDelay: 20 * time.Millisecond, MaxReconnectDelay: 300 * time.Millisecond}
	var client *centrifuge.Client
	if format == "protobuf" {
		client = centrifuge.NewProtobufClient(url, config)
	} else {
		client = centrifuge.NewJsonClient(url, config)
	}
	client.OnConnected(func(event centrifuge.ConnectedEvent) { say("connected %s", event.ClientID) })
	client.OnConnecting(func(event centrifuge.ConnectingEvent) { say("connecting %d %s", event.Code, event.Reason) })
	client.OnDisconnected(func(event centrifuge.DisconnectedEvent) { say("disconnected %d %s", event.Code, event.Reason) })
	subscription, err := client.NewSubscription(channel, centrifuge.SubscriptionConfig{Recoverable: true, Positioned: true, JoinLeave: true})
	check(err)
	subscription.OnSubscribed(func(event centrifuge.SubscribedEvent) {
		say("subscribed %t %t", event.WasRecovering, event.Recovered)
	})
	subscription.OnPublication(func(event centrifuge.PublicationEvent) {
		say("publication %d %x", event.Offset, event.Data)
	})
	subscription.OnJoin(func(event centrifuge.JoinEvent) { say("join %s", event.Client) })
	subscription.OnLeave(func(event centrifuge.LeaveEvent) { say("leave %s", event.Client) })
	check(client.Connect())
	check(subscription.Subscribe())

	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		switch order := input.Text(); order {
		case "publish":
			_, err := subscription.Publish(ctx, []byte(`{"from":"sdk"}`))
			check(err)
			say("published")
		case "publish-binary":
			_, err := subscription.Publish(ctx, []byte{0, 1, 255})
			check(err)
			say("published")
		case "history":
			result, err := subscription.History(ctx, centrifuge.WithHistoryLimit(-1))
			check(err)
			say("history %d %d", len(result.Publications), result.Offset)
		case "presence":
			result, err := subscription.Presence(ctx)
			check(err)
			stats, err := subscription.PresenceStats(ctx)
			check(err)
			say("presence %d %d %d", len(result.Clients), stats.NumClients, stats.NumUsers)
		case "rpc":
			_, err := client.RPC(ctx, "method", []byte("{}"))
			say("rpc %v", err)
		case "unsubscribe":
			check(subscription.Unsubscribe())
			say("unsubscribed")
		case "quit":
			client.Close()
			os.Exit(0)
		}
		cancel()
	}
}

func say(format string, values ...any) { fmt.Printf(format+"\n", values...) }

func check(err error) {
	if err != nil {
		say("failed %v", err)
		os.Exit(1)
	}
}
