-- Positions of streams, which begin if there are none. KEYS: the hash of each; its list has the same name with another letter. ARGV:
-- 1 generation, 2 candidate for the epoch of those that begin, 3 bytes before that letter; of each: the epoch that the caller knows, if any; milliseconds the state lives, 0 not to renew it; an
-- epoch and the highest offset that the caller has seen of it in another generation, a colon between them, if any.
-- Returns of each epoch, top, and the positions of epochs before that mean the same; or `!`, and what went wrong; or `~` if the caller
-- is behind.
-- A stream that goes on as the caller knows it takes one call: a node asks for all of its own at once when it was cut off.
local c = redis.call
@begin
local function open(m, seen)
  local k = string.sub(m, 1, ARGV[3]) .. 'c' .. string.sub(m, ARGV[3] + 2)
  local seen_epoch, seen_top = string.match(seen, '^(%w*):(%d+)$')
  local e, top, before = begin(k, m, ARGV[2], ARGV[1], seen_epoch or '', seen_top or '0')
  return { e or '~', top or '', before or '' }
end
local generation, out, n, a = ARGV[1], {}, 0, 4
for i = 1, #KEYS do
  local m, e, ttl, seen = KEYS[i], ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local s = e ~= '' and seen == '' and redis.pcall('HMGET', m, ':c', ':g', e, ':p')
  if s and s[1] == e and s[2] == generation then
    out[n + 1], out[n + 2], out[n + 3] = e, s[3], s[4] or ''
  else
    local good, position = pcall(open, m, seen)
    if good then
      out[n + 1], out[n + 2], out[n + 3] = position[1], position[2], position[3]
    else
      if type(position) == 'table' then position = position.err end
      out[n + 1], out[n + 2], out[n + 3] = '!', position, ''
    end
  end
  if ttl ~= '0' then redis.pcall('PEXPIRE', m, ttl) end
  n, a = n + 3, a + 3
end
return out
