-- KEYS: hashes of streams. Returns epoch and top of each; empty and 0 for one that does not exist.
local c = redis.call
local out = {}
for i = 1, #KEYS do
  local e = c('HGET', KEYS[i], ':c')
  out[2 * i - 1] = e or ''
  out[2 * i] = e and c('HGET', KEYS[i], e) or '0'
end
return out
