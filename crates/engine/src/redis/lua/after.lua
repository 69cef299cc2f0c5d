-- The index from the end of the first entry that reaches beyond `offset`; 0 if none does. Entries follow each other without
-- a hole, each has one publication at least and says the offset of its last.
local function reach(index)
  return tonumber(string.match(c('LINDEX', k, index), '^1p%w*:(%d+):'))
end
local function after(k, top, offset)
  local length = c('LLEN', k)
  local low, high = offset - top, -1
  if -low > length then low = -length end
  if low >= 0 then return 0 end
  if reach(low) > offset then return low end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if reach(middle) > offset then high = middle else low = middle + 1 end
  end
  return low
end
