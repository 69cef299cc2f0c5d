// A node of the library of which Centrifugo is made, with its engine on Redis and as much of Centrifugo's server API as the
// stories and `dunlin bench cluster` call. Every channel has a history, is recovered, has presence, and tells who joins and leaves,
// unless flags say otherwise; those of `plain:` keep nothing. Prints its port.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/centrifugal/centrifuge"
)

const (
	historySize = 100
	historyTTL  = 5 * time.Minute
	metaTTL     = time.Hour
	// Centrifugo's default.
	presenceInterval = 27 * time.Second
)

// What channels have.
var (
	history   = flag.Bool("history", true, "channels keep a history and are recovered")
	presence  = flag.Bool("presence", true, "channels know who is in them")
	joinLeave = flag.Bool("join-leave", true, "channels tell who joins and leaves")
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
	Commands []struct {
		Publish *request `json:"publish"`
	} `json:"commands"`
}

type published struct {
	Offset uint64 `json:"offset,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

type reply struct {
	Error   *failure   `json:"error,omitempty"`
	Publish *published `json:"publish,omitempty"`
}

type object = map[string]any

func main() {
	addresses := flag.String("redis", "", "addresses of servers of Redis, commas between them")
	cluster := flag.Bool("cluster", false, "they are nodes of a Redis Cluster")
	partitions := flag.Int("partitions", 0, "partitions of sharded publish/subscribe")
	prefix := flag.String("prefix", "centrifugo", "prefix of keys and channels")
	listen := flag.String("listen", "127.0.0.1:0", "address of clients and of the server API")
	positionCheck := flag.Duration("position-check", time.Second, "how often a client's position is compared with its channel's")
	version := flag.Bool("version", false, "print the library's version")
	flag.Parse()
	if *version {
		fmt.Println(libraryVersion())
		return
	}

	node, err := centrifuge.New(centrifuge.Config{
		LogLevel:                        centrifuge.LogLevelInfo,
		LogHandler:                      func(entry centrifuge.LogEntry) { log.Println(entry.Message, entry.Fields) },
		HistoryMetaTTL:                  metaTTL,
		ClientChannelPositionCheckDelay: *positionCheck,
		ClientPresenceUpdateInterval:    presenceInterval,
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
	members, err := centrifuge.NewRedisPresenceManager(node, centrifuge.RedisPresenceManagerConfig{Prefix: *prefix, Shards: shards})
	check(err)
	node.SetPresenceManager(members)
	handleClients(node)
	check(node.Run())

	mux := http.NewServeMux()
	mux.Handle("/connection/websocket", centrifuge.NewWebsocketHandler(node, centrifuge.WebsocketConfig{CheckOrigin: func(*http.Request) bool { return true }}))
	mux.HandleFunc("POST /api/{method}", func(w http.ResponseWriter, r *http.Request) {
		var asked request
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &asked)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		answer, err := json.Marshal(serve(node, r.PathValue("method"), asked))
		check(err)
		_, _ = w.Write(answer)
	})
	listener, err := net.Listen("tcp", *listen)
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check(http.Serve(listener, mux))
}

func libraryVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/centrifugal/centrifuge" {
			return module.Version
		}
	}
	return "unknown"
}

// handleClients lets everybody do everything; the user is what the client says in the data of its connect, or in a token, whose
// channels it is subscribed to. Nobody looks at the token's signature.
func handleClients(node *centrifuge.Node) {
	node.OnConnecting(func(_ context.Context, event centrifuge.ConnectEvent) (centrifuge.ConnectReply, error) {
		var data struct {
			User string `json:"user"`
		}
		_ = json.Unmarshal(event.Data, &data)
		reply := centrifuge.ConnectReply{Credentials: &centrifuge.Credentials{UserID: data.User}}
		if parts := strings.Split(event.Token, "."); len(parts) == 3 {
			var claims struct {
				Sub      string   `json:"sub"`
				Channels []string `json:"channels"`
			}
			payload, err := base64.RawURLEncoding.DecodeString(parts[1])
			if err != nil || json.Unmarshal(payload, &claims) != nil {
				return reply, centrifuge.DisconnectInvalidToken
			}
			reply.Credentials.UserID = claims.Sub
			reply.Subscriptions = map[string]centrifuge.SubscribeOptions{}
			for _, channel := range claims.Channels {
				reply.Subscriptions[channel] = options(channel)
			}
		}
		return reply, nil
	})
	node.OnConnect(func(client *centrifuge.Client) {
		client.OnSubscribe(func(event centrifuge.SubscribeEvent, callback centrifuge.SubscribeCallback) {
			callback(centrifuge.SubscribeReply{Options: options(event.Channel)}, nil)
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

func options(channel string) centrifuge.SubscribeOptions {
	keeps := keeps(channel)
	return centrifuge.SubscribeOptions{
		EmitPresence: *presence, EmitJoinLeave: *joinLeave, PushJoinLeave: *joinLeave,
		EnableRecovery: keeps, EnablePositioning: keeps,
		AllowedDeltaTypes: []centrifuge.DeltaType{centrifuge.DeltaTypeFossil},
	}
}

// serve has the answer to a request. What a batch has is done one by one, as Centrifugo does it.
func serve(node *centrifuge.Node, method string, asked request) any {
	if method == "batch" {
		replies := make([]reply, len(asked.Commands))
		for i, command := range asked.Commands {
			if command.Publish == nil {
				replies[i].Error = &failure{Code: 104, Message: "only publishes"}
				continue
			}
			replies[i].Publish, replies[i].Error = publish(node, command.Publish)
		}
		return struct {
			Replies []reply `json:"replies"`
		}{replies}
	}
	answer := struct {
		Error  *failure `json:"error,omitempty"`
		Result any      `json:"result,omitempty"`
	}{}
	if method == "publish" {
		answer.Result, answer.Error = publish(node, &asked)
		return answer
	}
	result, err := read(node, method, asked)
	answer.Result, answer.Error = result, failed(err)
	return answer
}

func failed(err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{Code: 100, Message: err.Error()}
}

func publish(node *centrifuge.Node, asked *request) (*published, *failure) {
	options := []centrifuge.PublishOption{centrifuge.WithIdempotencyKey(asked.IdempotencyKey), centrifuge.WithTags(asked.Tags), centrifuge.WithDelta(asked.Delta)}
	if keeps(asked.Channel) {
		options = append(options, centrifuge.WithHistory(historySize, historyTTL))
	}
	if asked.Version > 0 {
		options = append(options, centrifuge.WithVersion(asked.Version, ""))
	}
	result, err := node.Publish(asked.Channel, asked.Data, options...)
	return &published{result.StreamPosition.Offset, result.StreamPosition.Epoch}, failed(err)
}

func read(node *centrifuge.Node, method string, asked request) (any, error) {
	switch method {
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
		return object{"offset": result.StreamPosition.Offset, "epoch": result.StreamPosition.Epoch, "publications": publications}, nil
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

func keeps(channel string) bool {
	return *history && !strings.HasPrefix(channel, "plain:")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
