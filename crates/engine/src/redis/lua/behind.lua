-- Whether the server's data are of another generation than the caller knows: it would begin epochs that the others end again, and is
-- to ask for the generation first. List and state of a stream differ in one letter; the generation's key has the bytes before it.
local function is_behind(k, m, generation)
  local at = 1
  while string.byte(k, at) == string.byte(m, at) do at = at + 1 end
  local stored = redis.pcall('GET', string.sub(m, 1, at - 1) .. 'g')
  -- A key that is on its way to another node says nothing.
  if type(stored) == 'table' then return false end
  return not stored or string.match(stored, '[^/]*$') ~= generation
end
