-- A publication without history that has an idempotency key. KEYS: where the key's result is.
-- ARGV: message, milliseconds the result is remembered, channel.
if not redis.call('SET', KEYS[1], ':0', 'NX', 'PX', ARGV[2]) then return { '=', '', '0' } end
redis.call('@publish', ARGV[3], ARGV[1])
return 0
