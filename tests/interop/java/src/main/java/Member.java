// centrifuge-java as a member of a channel: does what every SDK does, then prints what it hears, a line each.
//
//     java Member URL CHANNEL

import io.github.centrifugal.centrifuge.*;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

public class Member {
    public static void main(String[] args) throws Exception {
        Options options = new Options();
        options.setMinReconnectDelay(20);
        options.setMaxReconnectDelay(300);
        Client client = new Client(args[0], options, new EventListener() {
            @Override
            public void onConnected(Client client, ConnectedEvent event) {
                say("connected " + event.getClient());
            }

            @Override
            public void onConnecting(Client client, ConnectingEvent event) {
                say("connecting " + event.getCode() + " " + event.getReason());
            }

            @Override
            public void onDisconnected(Client client, DisconnectedEvent event) {
                say("disconnected " + event.getCode() + " " + event.getReason());
            }
        });
        SubscriptionOptions of = new SubscriptionOptions();
        of.setRecoverable(true);
        of.setPositioned(true);
        of.setJoinLeave(true);
        Subscription subscription = client.newSubscription(args[1], of, new SubscriptionEventListener() {
            @Override
            public void onSubscribed(Subscription sub, SubscribedEvent event) {
                say("subscribed " + event.wasRecovering() + " " + event.getRecovered());
            }

            @Override
            public void onPublication(Subscription sub, PublicationEvent event) {
                say("publication " + event.getOffset() + " " + HexFormat.of().formatHex(event.getData()));
            }

            @Override
            public void onJoin(Subscription sub, JoinEvent event) {
                say("join " + event.getInfo().getClient());
            }

            @Override
            public void onLeave(Subscription sub, LeaveEvent event) {
                say("leave " + event.getInfo().getClient());
            }
        });
        client.connect();
        subscription.subscribe();

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String order; (order = input.readLine()) != null; ) {
            switch (order) {
                case "publish" -> subscription.publish("{\"from\":\"sdk\"}".getBytes(StandardCharsets.UTF_8), Member::published);
                case "publish-binary" -> subscription.publish(new byte[] {0, 1, -1}, Member::published);
                case "history" -> subscription.history(new HistoryOptions.Builder().withLimit(-1).build(), (error, result) -> {
                    if (error != null) fail(error);
                    else say("history " + result.getPublications().size() + " " + result.getOffset());
                });
                case "presence" -> subscription.presence((error, present) -> {
                    if (error != null) fail(error);
                    else subscription.presenceStats((why, stats) -> {
                        if (why != null) fail(why);
                        else say("presence " + present.getClients().size() + " " + stats.getNumClients() + " " + stats.getNumUsers());
                    });
                });
                case "rpc" -> client.rpc("method", "{}".getBytes(StandardCharsets.UTF_8), (error, result) -> say("rpc " + error));
                case "unsubscribe" -> {
                    subscription.unsubscribe();
                    say("unsubscribed");
                }
                case "quit" -> {
                    client.close(1000);
                    System.exit(0);
                }
            }
        }
    }

    static void published(Throwable error, PublishResult result) {
        if (error != null) fail(error);
        else say("published");
    }

    static void fail(Throwable error) {
        say("failed " + error);
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }
}
