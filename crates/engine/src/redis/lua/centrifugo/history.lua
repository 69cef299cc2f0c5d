-- Part of a stream of Centrifugo's layout, which begins if there is none. KEYS: stream, hash. ARGV: candidate for the epoch, milliseconds the
-- hash lives or 0, offset beside the part or -1, number of entries at most or -1, 1 for newest first, size of the history, bytes
-- of the entries at most. Returns epoch, top, an empty text, entries in the order that was asked for, and how many bytes the next one has
-- that does not fit, 0 if there is none.
local c, stream, meta = redis.call, KEYS[1], KEYS[2]
local state = c('HMGET', meta, 'e', 's')
local e, top = state[1], tonumber(state[2] or '0')
if not e then
  e = ARGV[1]
  c('HSET', meta, 'e', e)
end
if ARGV[2] ~= '0' then c('PEXPIRE', meta, ARGV[2]) end
local since, left = tonumber(ARGV[3]), tonumber(ARGV[4])
local entries, more, room, step = {}, 0, tonumber(ARGV[7]), 8
local command, at, stop, way = 'XRANGE', math.max(since, top - ARGV[6], 0) + 1, '+', 1
if ARGV[5] == '1' then command, at, stop, way = 'XREVRANGE', since < 0 and top or since - 1, '-', -1 end
if left < 0 then left = math.huge end
if way < 0 and since > top + 1 then left = 0 end
while left > 0 and more == 0 and at >= 0 do
  local part = c(command, stream, string.format('%.0f', at), stop, 'COUNT', math.min(step, left))
  for i = 1, #part do
    local bytes = 64
    for j = 1, #part[i][2] do bytes = bytes + #part[i][2][j] end
    room = room - bytes
    if room < 0 then
      more = bytes
      break
    end
    entries[#entries + 1] = part[i]
    at = tonumber(string.match(part[i][1], '^%d+')) + way
  end
  if #part < step then break end
  left, step = left - #part, 128
end
return { e, top, '', entries, more }
