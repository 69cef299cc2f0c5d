-- A publication without history that has an idempotency key. KEYS: channel, where the key's result is.
-- ARGV: message, milliseconds the result is remembered.
if not redis.call('SET', KEYS[2], ':0', 'NX', 'PX', ARGV[2]) then return { '=', '', '0' } end
redis.call('@publish', KEYS[1], ARGV[1])
return 0
