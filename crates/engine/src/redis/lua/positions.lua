-- KEYS: hashes of streams. ARGV: the epoch that the caller knows of each, if any. Returns epoch and top of each; empty and 0 for one
-- that does not exist. The field of an epoch exists as long as it is the stream's: a stream that the caller knows takes one read.
local c = redis.call
local out = {}
for i = 1, #KEYS do
  local m, e = KEYS[i], ARGV[i]
  local top = e ~= '' and c('HGET', m, e)
  if not top then
    e = c('HGET', m, ':c')
    top = e and c('HGET', m, e)
  end
  out[2 * i - 1] = e or ''
  out[2 * i] = top or '0'
end
return out
