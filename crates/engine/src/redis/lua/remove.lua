-- Removes what a stream keeps; its offsets go on. KEYS: list, hash.
local c, k, m = redis.call, KEYS[1], KEYS[2]
c('LTRIM', k, 1, 0)
local e = c('HGET', m, ':c')
if e then c('@publish', k, '1c' .. e .. ':' .. c('HGET', m, e) .. ':') end
return 1
