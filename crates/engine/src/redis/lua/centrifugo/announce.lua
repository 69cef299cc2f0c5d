-- Publications without history. KEYS: where the result of the first one's idempotency key is, if it has one.
-- ARGV: milliseconds that is remembered, channel, and the messages.
local result = KEYS[1]
if result and redis.call('HEXISTS', result, 'e') == 1 then return { '=', '', '0' } end
for i = 3, #ARGV do redis.call('@publish', ARGV[2], ARGV[i]) end
if result then
  redis.call('HSET', result, 'e', '')
  redis.call('PEXPIRE', result, ARGV[1])
end
return 0
