-- Publications without history. KEYS: channel; where the result of the first one's idempotency key is, if it has one.
-- ARGV: milliseconds that is remembered, and the messages.
if KEYS[2] and redis.call('HEXISTS', KEYS[2], 'e') == 1 then return { '=', '', '0' } end
for i = 2, #ARGV do redis.call('@publish', KEYS[1], ARGV[i]) end
if KEYS[2] then
  redis.call('HSET', KEYS[2], 'e', '')
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return 0
