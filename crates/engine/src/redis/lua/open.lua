-- Positions of streams, which begin if there are none. KEYS: list and hash of each. ARGV: generation; of each: candidate for
-- the epoch, milliseconds the state lives, an epoch and the highest offset that the caller has seen of it.
-- Returns of each epoch, top, and the positions of epochs before that mean the same; or `!`, and what went wrong.
local c = redis.call
@begin
local function open(i)
  local k, m, a = KEYS[i], KEYS[i + 1], 2 * i
  local e, top, before = begin(k, m, ARGV[a], ARGV[1], ARGV[a + 2], ARGV[a + 3])
  if ARGV[a + 1] ~= '0' then c('PEXPIRE', m, ARGV[a + 1]) end
  return { e, top, before or '' }
end
local out = {}
for i = 1, #KEYS, 2 do
  local good, position = pcall(open, i)
  if good then
    out[#out + 1], out[#out + 2], out[#out + 3] = position[1], position[2], position[3]
  else
    if type(position) == 'table' then position = position.err end
    out[#out + 1], out[#out + 2], out[#out + 3] = '!', position, ''
  end
end
return out
