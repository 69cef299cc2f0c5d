-- Positions of streams of Centrifugo's layout, which begin if there are none. KEYS: hash of each. ARGV: 1 candidate for the epoch; of each:
-- milliseconds the hash lives, 0 not to renew it; an epoch and the highest offset that the caller has seen of it before the server's
-- data may have been lost, a colon between them, if any. A stream of which more was seen than there is goes on in another epoch.
-- Returns of each epoch, top and an empty text; or `!`, and what went wrong.
local c = redis.call
local function open(meta, ttl, seen)
  local state = c('HMGET', meta, 'e', 's')
  local e, top = state[1], state[2] or '0'
  local seen_epoch, seen_top = string.match(seen, '^(%w+):(%d+)$')
  if not e or seen_epoch == e and tonumber(seen_top) > tonumber(top) then
    e = ARGV[1]
    c('HSET', meta, 'e', e)
  end
  if ttl ~= '0' then c('PEXPIRE', meta, ttl) end
  return { e, top }
end
local out = {}
for i = 1, #KEYS do
  local good, position = pcall(open, KEYS[i], ARGV[2 * i], ARGV[2 * i + 1])
  if good then
    out[3 * i - 2], out[3 * i - 1] = position[1], position[2]
  else
    if type(position) == 'table' then position = position.err end
    out[3 * i - 2], out[3 * i - 1] = '!', position
  end
  out[3 * i] = ''
end
return out
