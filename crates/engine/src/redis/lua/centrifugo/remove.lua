-- Removes what a stream of Centrifugo's layout keeps; its offsets go on. KEYS: stream. ARGV: where nodes of Dunlin hear of it, the channel.
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
