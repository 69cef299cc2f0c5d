-- Part of a stream of Centrifugo's layout, which begins if there is none. KEYS: stream, hash. ARGV: candidate for the epoch, milliseconds the
-- hash lives or 0, offset beside the part or -1, number of entries at most or -1, 1 for newest first, size of the history.
-- Returns epoch, top, an empty text, and entries in the order that was asked for.
local c, stream, meta = redis.call, KEYS[1], KEYS[2]
local state = c('HMGET', meta, 'e', 's')
local e, top = state[1], tonumber(state[2] or '0')
if not e then
  e = ARGV[1]
  c('HSET', meta, 'e', e)
end
if ARGV[2] ~= '0' then c('PEXPIRE', meta, ARGV[2]) end
local since, entries = tonumber(ARGV[3]), {}
if ARGV[4] ~= '0' and (ARGV[5] == '0' or since <= top + 1) then
  local range
  if ARGV[5] == '1' then
    range = { 'XREVRANGE', stream, since < 0 and top or since - 1, '-' }
  else
    range = { 'XRANGE', stream, math.max(since, top - ARGV[6], 0) + 1, '+' }
  end
  if ARGV[4] ~= '-1' then
    range[5], range[6] = 'COUNT', ARGV[4]
  end
  entries = c(unpack(range))
end
return { e, top, '', entries }
