-- KEYS: list of entries (also the name of the channel of publish/subscribe), hash of the stream's state.
-- ARGV: 1 epoch, 2 number of publications, 3 size of the history, 4 publications between two trims, 5 publications encoded,
-- 6 milliseconds the entries live, 7 milliseconds the state lives, 8 generation, 9 (if given) 1 to renew both times, 2 to
-- do so and take the epoch for a new one, if one is to be begun.
-- Returns the offset of the last publication; with the epoch before it if that is not the one given.
local c, k, m, e, count = redis.call, KEYS[1], KEYS[2], ARGV[1], ARGV[2]
@before
local n = c('HINCRBY', m, e, count)
if n - count == 0 and c('HGET', m, ':c') ~= e then
  -- Nothing was published in this epoch: it is a candidate, or not the stream's any more.
  c('HDEL', m, e)
  @begin
  e = begin(k, m, ARGV[9] == '2' and e, ARGV[8], '', '0')
  if not e then return redis.error_reply('STALE another epoch is to be begun') end
  n = c('HINCRBY', m, e, count)
end
local entry = '1p' .. e .. ':' .. n .. ':' .. ARGV[5]
local length = redis.pcall('RPUSH', k, entry)
if type(length) == 'table' then
  c('HINCRBY', m, e, -count)
  return length
end
c('@publish', k, entry)
if length == 1 or ARGV[9] and ARGV[9] ~= '' then
  c('PEXPIRE', k, ARGV[6])
  if ARGV[7] ~= '0' then c('PEXPIRE', m, ARGV[7]) end
end
if n % ARGV[4] - count < 0 and n - ARGV[3] > 0 then
  @after
  local first = after(k, n, n - ARGV[3])
  if -first < length then c('LTRIM', k, first, -1) end
end
@done
if e == ARGV[1] then return n end
return { e, n }
