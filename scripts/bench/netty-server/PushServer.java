import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http2.DefaultHttp2DataFrame;
import io.netty.handler.codec.http2.DefaultHttp2Headers;
import io.netty.handler.codec.http2.DefaultHttp2HeadersFrame;
import io.netty.handler.codec.http2.DefaultHttp2ResetFrame;
import io.netty.handler.codec.http2.Http2DataFrame;
import io.netty.handler.codec.http2.Http2Error;
import io.netty.handler.codec.http2.Http2FrameCodecBuilder;
import io.netty.handler.codec.http2.Http2Headers;
import io.netty.handler.codec.http2.Http2HeadersFrame;
import io.netty.handler.codec.http2.Http2MultiplexHandler;
import io.netty.handler.codec.http2.Http2SecurityUtil;
import io.netty.handler.codec.http2.Http2Settings;
import io.netty.handler.ssl.ApplicationProtocolConfig;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SupportedCipherSuiteFilter;
import io.netty.util.ReferenceCountUtil;
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/**
 * An HTTP/2 server as netty makes it: its windows come back by halves. It answers as the first two digits of the device token
 * say, like scripts/bench/go-server with "vary": <code>PushServer ADDRESS:PORT CERTIFICATE KEY</code>. It prints the address that
 * it listens at; at the end of its input, what it has accepted: a path and how often.
 */
public final class PushServer {
  private static final int STREAMS = 1000;
  private static final Map<String, Integer> asked = new ConcurrentHashMap<>();
  private static final Map<String, Integer> accepted = new ConcurrentHashMap<>();
  private static final AtomicReference<String> first = new AtomicReference<>();

  /** What becomes of a push: an answer after a time, or a reset. */
  private record Answer(double ms, int status, String body, Http2Error reset) {
    static Answer of(double ms, int status, String body) {
      return new Answer(ms, status, body, null);
    }

    static Answer reset(Http2Error code) {
      return new Answer(0, 0, "", code);
    }
  }

  private static Answer answer(String path, String authorization) {
    int before = asked.merge(path, 1, Integer::sum) - 1;
    first.compareAndSet(null, authorization);
    ThreadLocalRandom random = ThreadLocalRandom.current();
    switch (path.substring("/3/device/".length()).substring(0, 2)) {
      case "aa":
        return Answer.of(random.nextInt(20) == 0 ? 1 : 30, 200, "");
      case "ab":
        return Answer.of(5 - 25 * Math.log(1 - random.nextDouble()), 200, "");
      case "ac":
        return Answer.of(2 + 8 * Math.exp(0.8 * random.nextGaussian()), 200, "");
      case "b1":
        return Answer.of(0, 410, "{\"reason\":\"Unregistered\",\"timestamp\":\"1795276142526.25\"}");
      case "b3":
        return before == 0 ? Answer.of(0, 503, "{\"reason\":\"ServiceUnavailable\"}") : Answer.of(0, 200, "");
      case "b4":
        return before == 0
            ? Answer.reset(Http2Error.INTERNAL_ERROR)
            : Answer.of(0, 400, "{\"reason\":\"BadDeviceToken\"}");
      case "b5":
        return Answer.of(700, 200, "");
      case "b6":
        return before < 5 ? Answer.reset(Http2Error.REFUSED_STREAM) : Answer.of(0, 200, "");
      case "c0":
        return Answer.of(0, 403, "{\"reason\":\"InvalidProviderToken\"}");
      case "d0":
        return authorization.equals(first.get())
            ? Answer.of(50, 403, "{\"reason\":\"ExpiredProviderToken\"}")
            : Answer.of(0, 200, "");
      default:
        return Answer.of(0, 200, "");
    }
  }

  /** One stream. */
  private static final class Push extends ChannelInboundHandlerAdapter {
    private Http2Headers request;

    @Override
    public void channelRead(ChannelHandlerContext context, Object frame) {
      boolean isWhole = false;
      if (frame instanceof Http2HeadersFrame) {
        request = ((Http2HeadersFrame) frame).headers();
        isWhole = ((Http2HeadersFrame) frame).isEndStream();
      } else if (frame instanceof Http2DataFrame) {
        isWhole = ((Http2DataFrame) frame).isEndStream();
      }
      // What was read is given back to the window by the multiplexer.
      ReferenceCountUtil.release(frame);
      if (isWhole) {
        String path = request.path().toString();
        CharSequence authorization = request.get("authorization");
        Answer answer = answer(path, authorization == null ? "" : authorization.toString());
        long us = (long) (answer.ms * 1000);
        context.executor().schedule(() -> send(context, path, answer), us, TimeUnit.MICROSECONDS);
      }
    }

    private static void send(ChannelHandlerContext context, String path, Answer answer) {
      if (answer.reset != null) {
        context.writeAndFlush(new DefaultHttp2ResetFrame(answer.reset));
        return;
      }
      if (answer.status == 200) {
        accepted.merge(path, 1, Integer::sum);
      }
      Http2Headers headers = new DefaultHttp2Headers().status(Integer.toString(answer.status));
      headers.add("apns-id", "123e4567-e89b-12d3-a456-426614174000");
      context.write(new DefaultHttp2HeadersFrame(headers, answer.body.isEmpty()));
      if (!answer.body.isEmpty()) {
        ByteBuf body = ByteBufUtil.encodeString(
            context.alloc(), java.nio.CharBuffer.wrap(answer.body), StandardCharsets.UTF_8);
        context.write(new DefaultHttp2DataFrame(body, true));
      }
      context.flush();
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
      context.close();
    }
  }

  public static void main(String[] arguments) throws Exception {
    SslContext tls =
        SslContextBuilder.forServer(new File(arguments[1]), new File(arguments[2]))
            .ciphers(Http2SecurityUtil.CIPHERS, SupportedCipherSuiteFilter.INSTANCE)
            .applicationProtocolConfig(
                new ApplicationProtocolConfig(
                    ApplicationProtocolConfig.Protocol.ALPN,
                    ApplicationProtocolConfig.SelectorFailureBehavior.NO_ADVERTISE,
                    ApplicationProtocolConfig.SelectedListenerFailureBehavior.ACCEPT,
                    "h2"))
            .build();
    ServerBootstrap server =
        new ServerBootstrap()
            .group(new NioEventLoopGroup(2))
            .channel(NioServerSocketChannel.class)
            .childHandler(
                new ChannelInitializer<SocketChannel>() {
                  @Override
                  protected void initChannel(SocketChannel channel) {
                    Http2Settings settings = Http2Settings.defaultSettings().maxConcurrentStreams(STREAMS);
                    channel
                        .pipeline()
                        .addLast(
                            tls.newHandler(channel.alloc()),
                            Http2FrameCodecBuilder.forServer().initialSettings(settings).build(),
                            new Http2MultiplexHandler(
                                new ChannelInitializer<>() {
                                  @Override
                                  protected void initChannel(io.netty.channel.Channel stream) {
                                    stream.pipeline().addLast(new Push());
                                  }
                                }));
                  }
                });
    int colon = arguments[0].lastIndexOf(':');
    InetSocketAddress at =
        new InetSocketAddress(arguments[0].substring(0, colon), Integer.parseInt(arguments[0].substring(colon + 1)));
    InetSocketAddress bound = (InetSocketAddress) server.bind(at).sync().channel().localAddress();
    System.out.println(bound.getAddress().getHostAddress() + ":" + bound.getPort());
    while (System.in.read() >= 0) {}
    accepted.forEach((path, times) -> System.out.println(path + " " + times));
    System.exit(0);
  }
}
