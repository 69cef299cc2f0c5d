-- Publications into a stream of Centrifugo's layout. KEYS: 1 stream, 2 hash of its epoch and top.
-- ARGV: 1 candidate for the epoch, 2 size of the history, 3 milliseconds the entries live, 4 milliseconds the hash lives, 0 without end;
-- 5 to 7 of the check; 8 channel; then of each publication 1 if it may be sent as a difference, and the message.
-- Returns epoch and offset of the last one.
local c, stream, meta = redis.call, KEYS[1], KEYS[2]
@before
local e, n = c('HGET', meta, 'e'), 0
if not e then
  e = ARGV[1]
  c('HSET', meta, 'e', e)
end
for i = 9, #ARGV, 2 do
  local message, before = ARGV[i + 1], ''
  n = c('HINCRBY', meta, 's', 1)
  if n == 1 then
    -- Entries without a hash are what is left of a stream that was evicted.
    c('DEL', stream)
  elseif ARGV[i] == '1' then
    local last = c('XREVRANGE', stream, '+', '-', 'COUNT', 1)
    if last[1] then before = last[1][2][2] end
  end
  local added = redis.pcall('XADD', stream, 'MAXLEN', ARGV[2], n, 'd', message)
  if type(added) == 'table' then
    c('HINCRBY', meta, 's', -1)
    return added
  end
  if ARGV[i] == '1' then
    message = '__d1:' .. n .. ':' .. e .. ':' .. #before .. ':' .. before .. ':' .. #message .. ':' .. message
  else
    message = '__p1:' .. n .. ':' .. e .. '__' .. message
  end
  c('@publish', ARGV[8], message)
end
c('PEXPIRE', stream, ARGV[3])
if ARGV[4] ~= '0' then c('PEXPIRE', meta, ARGV[4]) end
@done
return { e, n }
