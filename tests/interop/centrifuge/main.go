// A node of the library of which Centrifugo is made, with its engine on Redis and as much of Centrifugo's server API as the
// stories call. Every channel has a history, is recovered, has presence, and tells who joins and leaves; those of `plain:` keep
// nothing. Prints its port.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/centrifugal/centrifuge"
)

const (
	historySize = 100
	historyTTL  = 5 * time.Minute
	metaTTL     = time.Hour
)

type request struct {
	Channel        string            `json:"channel"`
	Data           json.RawMessage   `json:"data"`
	IdempotencyKey string            `json:"idempotency_key"`
	Tags           map[string]string `json:"tags"`
	Delta          bool              `json:"delta"`
	Version        uint64            `json:"version"`
	Limit          int               `json:"limit"`
	Reverse        bool              `json:"reverse"`
	Since          *struct {
		Offset uint64 `json:"offset"`
		Epoch  string `json:"epoch"`
	} `json:"since"`
}

type object = map[string]any

func main() {
	addresses := flag.String("redis", "", "addresses of servers of Redis, commas between them")
	cluster := flag.Bool("cluster", false, "they are nodes of a Redis Cluster")
	partitions := flag.Int("partitions", 0, "partitions of sharded publish/subscribe")
	prefix := flag.String("prefix", "centrifugo", "prefix of keys and channels")
	flag.Parse()

	node, err := centrifuge.New(centrifuge.Config{
		LogLevel:                        centrifuge.LogLevelInfo,
		LogHandler:                      func(entry centrifuge.LogEntry) { log.Println(entry.Message, entry.Fields) },
		HistoryMetaTTL:                  metaTTL,
		ClientChannelPositionCheckDelay: time.Second,
	})
	check(err)
	configs := []centrifuge.RedisShardConfig{}
	if list := strings.Split(*addresses, ","); *cluster {
		configs = append(configs, centrifuge.RedisShardConfig{ClusterAddresses: list})
	} else {
		for _, address := range list {
			configs = append(configs, centrifuge.RedisShardConfig{Address: address})
		}
	}
	shards := []*centrifuge.RedisShard{}
	for _, config := range configs {
		shard, err := centrifuge.NewRedisShard(node, config)
		check(err)
		shards = append(shards, shard)
	}
	broker, err := centrifuge.NewRedisBroker(node, centrifuge.RedisBrokerConfig{Prefix: *prefix, Shards: shards, NumShardedPubSubPartitions: *partitions})
	check(err)
	node.SetBroker(broker)
	presence, err := centrifuge.NewRedisPresenceManager(node, centrifuge.RedisPresenceManagerConfig{Prefix: *prefix, Shards: shards})
	check(err)
	node.SetPresenceManager(presence)
	handleClients(node)
	check(node.Run())

	mux := http.NewServeMux()
	mux.Handle("/connection/websocket", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{CheckOrigin: func(*http.Request) bool { return true }}))
	mux.HandleFunc("POST /api/{method}", func(w http.ResponseWriter, r *http.Request) {
		var asked request
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := serve(node, r.PathValue("method"), asked)
		answer := object{"result": result}
		if err != nil {
			answer = object{"error": object{"code": 100, "message": err.Error()}}
		}
		check(json.NewEncoder(w).Encode(answer))
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check(http.Serve(listener, mux))
}

// handleClients lets everybody do everything; the user is what the client says in the data of its connect.
func handleClients(node *centrifuge.Node) {
	node.OnConnecting(func(_ context.Context, event centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		var data struct {
			User string `json:"user"`
		}
		_ = json.Unmarshal(event.Data, &data)
		return centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{UserID: data.User}}, nil
	})
	node.OnConnect(func(client *centrifuge.Client) {
		client.OnSubscribe(func(event centrifuge.SubscribeEvent, callback centrifuge.SubscribeCallback) {
			keeps := keeps(event.Channel)
			callback(centrifuge.SubscribeReply{Options: centrifuge.SubscribeOptions{
				EmitPresence: true, EmitJoinLeave: true, PushJoinLeave: true,
				EnableRecovery: keeps, EnablePositioning: keeps,
				AllowedDeltaTypes: []centrifuge.DeltaType{centrifuge.DeltaTypeFossil},
			}}, nil)
		})
		client.OnPublish(func(event centrifuge.PublishEvent, callback centrifuge.PublishCallback) {
			options := centrifuge.PublishOptions{ClientInfo: event.ClientInfo}
			if keeps(event.Channel) {
				options.HistorySize, options.HistoryTTL = historySize, historyTTL
			}
			callback(centrifuge.PublishReply{Options: options}, nil)
		})
		client.OnPresence(func(_ centrifuge.PresenceEvent, callback centrifuge.PresenceCallback) {
			callback(centrifuge.PresenceReply{}, nil)
		})
		client.OnHistory(func(_ centrifuge.HistoryEvent, callback centrifuge.HistoryCallback) {
			callback(centrifuge.HistoryReply{}, nil)
		})
	})
}

func serve(node *centrifuge.Node, method string, asked request) (any, error) {
	switch method {
	case "publish":
		options := []centrifuge.PublishOption{centrifuge.WithIdempotencyKey(asked.IdempotencyKey), centrifuge.WithTags(asked.Tags), centrifuge.WithDelta(asked.Delta)}
		if keeps(asked.Channel) {
			options = append(options, centrifuge.WithHistory(historySize, historyTTL))
		}
		if asked.Version > 0 {
			options = append(options, centrifuge.WithVersion(asked.Version, ""))
		}
		result, err := node.Publish(asked.Channel, asked.Data, options...)
		return position(result.StreamPosition), err
	case "history":
		filter := centrifuge.HistoryFilter{Limit: asked.Limit, Reverse: asked.Reverse}
		if asked.Since != nil {
			filter.Since = &centrifuge.StreamPosition{Offset: asked.Since.Offset, Epoch: asked.Since.Epoch}
		}
		result, err := node.History(asked.Channel, centrifuge.WithHistoryFilter(filter))
		if err != nil {
			return nil, err
		}
		publications := []object{}
		for _, publication := range result.Publications {
			entry := object{"offset": publication.Offset, "data": json.RawMessage(publication.Data)}
			if len(publication.Tags) > 0 {
				entry["tags"] = publication.Tags
			}
			if info := publication.Info; info != nil {
				entry["info"] = object{"user": info.UserID, "client": info.ClientID}
			}
			publications = append(publications, entry)
		}
		answer := position(result.StreamPosition)
		answer["publications"] = publications
		return answer, nil
	case "history_remove":
		return object{}, node.RemoveHistory(asked.Channel)
	case "presence":
		result, err := node.Presence(asked.Channel)
		present := object{}
		for client, info := range result.Presence {
			present[client] = object{"user": info.UserID, "client": info.ClientID}
		}
		return object{"presence": present}, err
	}
	return nil, fmt.Errorf("no such method: %s", method)
}

func position(at centrifuge.StreamPosition) object {
	answer := object{}
	if at.Offset > 0 || at.Epoch != "" {
		answer["offset"], answer["epoch"] = at.Offset, at.Epoch
	}
	return answer
}

func keeps(channel string) bool {
	return !strings.HasPrefix(channel, "plain:")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
