-- KEYS: hashes of streams of Centrifugo's layout. ARGV is not used. Returns epoch and top of each; empty and 0 for one that does not exist.
local out = {}
for i = 1, #KEYS do
  local state = redis.call('HMGET', KEYS[i], 'e', 's')
  out[2 * i - 1] = state[1] or ''
  out[2 * i] = state[2] or '0'
end
return out
